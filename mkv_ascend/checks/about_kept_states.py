# SPDX-License-Identifier: Apache-2.0
"""Steps that never reach the end of a block at which states of the target are kept."""

from __future__ import annotations

from collections.abc import Iterator

from mkv_ascend.checks.facts import ServeFacts
from mkv_ascend.checks.refusal import Refusal

__all__ = ["CHECKS"]


def short_steps(facts: ServeFacts) -> Iterator[Refusal]:
    """Steps, or chunks of a prompt, of fewer tokens than such a block."""
    block = facts.kept_block
    if block is None:
        return
    kept = (
        f"with prefix caching, states of {facts.target.name} are kept at the end of each block of "
        f"{block} tokens"
    )
    each = 0 if facts.speculation is None else facts.speculation.kept_of_each_request
    tokens, requests = (facts.whole(n, 0) for n in ("max_num_batched_tokens", "max_num_seqs"))
    kept_back = each * requests
    if 0 < tokens < block + kept_back:
        yield Refusal(
            "step-size",
            f"{kept}, and --max-num-batched-tokens is {tokens}"
            + (f", of which drafts keep {kept_back}" if kept_back else "")
            + ": a long prompt would wait for ever",
            f"{block + kept_back} tokens or more",
            "raise --max-num-batched-tokens, or switch prefix caching off",
        )
    chunk = facts.whole("long_prefill_token_threshold", 0)
    if 0 < chunk < block:
        yield Refusal(
            "step-size",
            f"{kept}, and --long-prefill-token-threshold cuts prompts into chunks of {chunk}: none "
            "would reach that end",
            f"{block} tokens or more",
            "raise --long-prefill-token-threshold, leave it out, or switch prefix caching off",
        )


CHECKS = (short_steps,)
