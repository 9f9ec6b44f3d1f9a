# SPDX-License-Identifier: Apache-2.0
"""KV groups: layers that share a block table, since they keep the same tokens in equal blocks.

Their pages may differ. Which layers are a group, ``page_planning`` decides; here is what one is,
what all cost one request in memory, and whether a number of blocks holds one of full length. That
is asked at start-up: a scheduler that can never admit a request waits for ever.
"""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass, replace

from mkv_ascend.layout.component import ONE_BLOCK, PageShape, counted_in
from mkv_ascend.layout.requirements import Request, Retention

MIB = 2**20
NULL_BLOCKS = 1
"""vLLM keeps block 0 for itself (the null block, ``vllm/v1/core/block_pool.py``)."""


class GroupingError(ValueError):
    """Layers that cannot be grouped; the message says what to change."""


class AdmissionError(ValueError):
    """Memory that cannot hold one request; the message has the numbers and what to change."""


@dataclass(frozen=True)
class Group:
    """One KV group: layer names with a target's layer first where there is one.

    ``blocks``: blocks of ``block_size`` tokens that one request holds. ``shape``: blocks in a page.
    """

    layers: tuple[str, ...]
    block_size: int
    blocks: int
    has_draft: bool
    retention: Retention
    shape: PageShape = ONE_BLOCK

    def pages(self, request: Request) -> int:
        """Pages that ``request`` holds where it is alone."""
        return self.shape.pages(self.retention.blocks(self.block_size, request))

    def page_share(self, request: Request) -> float:
        """The same of one of many like it."""
        return self.shape.share(self.retention.blocks(self.block_size, request))


@dataclass(frozen=True)
class Cost:
    """What a grouping costs one request. ``needed_bytes``: the same without any padding.

    ``page_bytes``: bytes of one page over all pools; ``pages``: that the request holds.
    """

    groups: int
    pages: int
    page_bytes: int
    needed_bytes: int = 0

    @property
    def held_bytes(self) -> int:
        return self.pages * self.page_bytes

    @property
    def padding_fraction(self) -> float:
        """Share of the held bytes that holds nothing of the request."""
        return max(0.0, 1 - self.needed_bytes / self.held_bytes) if self.held_bytes else 0.0

    def pages_in(self, memory_bytes: int | None) -> int | None:
        """Pages that fit into the memory; None where that or the bytes of a page are unknown."""
        return memory_bytes // self.page_bytes if memory_bytes and self.page_bytes else None

    def requests_in(self, memory_bytes: int | None) -> float | None:
        """Requests that fit at once, vLLM's null block taken off."""
        found = self.pages_in(memory_bytes)
        return None if found is None or not self.pages else max(found - 1, 0) / self.pages

    def __str__(self) -> str:
        groups = f"{self.groups} group" + ("s" if self.groups != 1 else "")
        return f"{groups}, {self.held_bytes / MIB:.0f} MiB, {self.padding_fraction:.1%} padding"


@dataclass(frozen=True)
class Groups:
    groups: tuple[Group, ...]

    @property
    def prefix_hit_tokens(self) -> int:
        """Prefix hits are multiples of this many tokens (vLLM's ``scheduler_block_size``).

        A block of compressed keys stands for more tokens than it has rows. States have no say in it
        where they are not cached by prefix.
        """
        return math.lcm(*(x.retention.tokens_of_block(x.block_size) for x in self.groups))


@dataclass(frozen=True)
class Grouping(Groups):
    """The groups, and what they cost."""

    cost: Cost


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
    return bisect.bisect_right(
        range(1, request.tokens + 1),
        num_blocks,
        key=lambda tokens: blocks_needed(groups, replace(request, tokens=tokens)),
    )


def require_one_request(grouping: Grouping, request: Request, num_blocks: int) -> None:
    """Raise AdmissionError if ``num_blocks`` blocks cannot hold ``request`` alone.

    ``request``: ``max_model_len`` tokens with the draft's, and the tokens of one step.
    """
    groups, page = grouping.groups, grouping.cost.page_bytes
    needed = blocks_needed(groups, request)
    if needed <= num_blocks:
        return
    longest = longest_request(groups, request, num_blocks)
    shorter = f"lower --max-model-len by {request.tokens - longest} tokens; " if longest else ""
    counted = counted_in(group.shape for group in groups)
    raise AdmissionError(
        f"one request of {request.tokens} tokens needs {needed} {counted}s of {page} bytes "
        f"({needed * page / MIB:.1f} MiB, {never_held(_asked_for(groups), counted)}) in "
        f"{len(groups)} KV groups; there are {num_blocks} ({num_blocks * page / MIB:.1f} MiB), "
        f"enough for {longest} tokens. Possible: {shorter}give the KV cache more memory "
        "(--gpu-memory-utilization)"
    )
