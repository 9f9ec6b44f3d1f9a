# SPDX-License-Identifier: Apache-2.0
"""Whether a number of blocks holds one request of full length: asked at start-up, not by a hang.

A scheduler that can never admit a request waits for ever. vLLM keeps block 0 for itself (the null
block, ``vllm/v1/core/block_pool.py``), so one block more than the request holds is needed.
"""

from __future__ import annotations

from dataclasses import replace

from mkv_ascend.layout.grouping import MIB, Group, Grouping
from mkv_ascend.layout.page_shape import counted_in
from mkv_ascend.layout.retention import Request

NULL_BLOCKS = 1


class AdmissionError(ValueError):
    """Memory that cannot hold one request; the message has the numbers and what to change."""


def blocks_needed(groups: tuple[Group, ...], request: Request) -> int:
    """Pages of the pool with which ``request`` alone can run, the null block's included."""
    return sum(group.pages(request) for group in groups) + _asked_for(groups) + NULL_BLOCKS


def _asked_for(groups: tuple[Group, ...]) -> int:
    return sum(group.retention.asked_blocks for group in groups)


def never_held(asked_for: int, counted: str) -> str:
    """Which blocks or pages (``counted``) a request needs without holding them, for messages."""
    states = f", {asked_for} asked for beside states but never taken" if asked_for else ""
    return f"{NULL_BLOCKS} {counted} being vLLM's own{states}"


def longest_request(groups: tuple[Group, ...], request: Request, num_blocks: int) -> int:
    """Most tokens of a request like ``request`` that ``num_blocks`` blocks hold; 0 for none."""
    low, high = 0, request.tokens
    while low < high:
        middle = (low + high + 1) // 2
        if blocks_needed(groups, replace(request, tokens=middle)) <= num_blocks:
            low = middle
        else:
            high = middle - 1
    return low


def require_one_request(grouping: Grouping, request: Request, num_blocks: int) -> None:
    """Raise AdmissionError if ``num_blocks`` blocks cannot hold ``request`` alone.

    ``request``: ``max_model_len`` tokens with the draft's, and the tokens of one step.
    """
    needed = blocks_needed(grouping.groups, request)
    if needed <= num_blocks:
        return
    longest = longest_request(grouping.groups, request, num_blocks)
    shorter = f"lower --max-model-len by {request.tokens - longest} tokens" if longest else ""
    options = [shorter, "give the KV cache more memory (--gpu-memory-utilization)"]
    counted = counted_in(group.shape for group in grouping.groups)
    raise AdmissionError(
        f"one request of {request.tokens} tokens needs {needed} {counted}s of "
        f"{grouping.cost.page_bytes} bytes ({needed * grouping.cost.page_bytes / MIB:.1f} MiB, "
        f"{never_held(_asked_for(grouping.groups), counted)}) in {len(grouping.groups)} KV groups; "
        f"there are {num_blocks} "
        f"({num_blocks * grouping.cost.page_bytes / MIB:.1f} MiB), enough for {longest} tokens. "
        f"Possible: {'; '.join(option for option in options if option)}"
    )
