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
    tokens, kept_back = facts.whole("max_num_batched_tokens", 0), _tokens_kept_for_drafts(facts)
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


def _tokens_kept_for_drafts(facts: ServeFacts) -> int:
    """Of a step, as far as the command says for how many requests.

    vLLM keeps one for each request of a draft model, and one for each mask of a draft of masks
    (``SpeculativeConfig.max_num_new_slots_for_drafting``).
    """
    speculation = facts.speculation
    if speculation is None:
        return 0
    masks = speculation.tokens - 1 if speculation.options.get("parallel_drafting") else 0
    return (masks + (speculation.method == "draft_model")) * facts.whole("max_num_seqs", 0)


CHECKS = (short_steps,)
