# SPDX-License-Identifier: Apache-2.0
"""States of the target that are kept at the ends of blocks for prefix hits."""

from __future__ import annotations

from collections.abc import Iterator

from mkv_ascend import host_versions
from mkv_ascend.checks.facts import ServeFacts
from mkv_ascend.checks.refusal import Refusal

__all__ = ["CHECKS", "of_all_blocks"]


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


def steps_short_of_a_block(facts: ServeFacts) -> Iterator[Refusal]:
    """Steps that would take a block, but for what they keep for drafts: vLLM 0.30.0's scheduler.

    It takes a chunk back to the end of a block if a step may take a whole block, and does not count
    what it leaves for drafts (``early_checks/states.py`` of that adapter).
    """
    rules, speculation, plan = facts.rules, facts.speculation, facts.plan
    if rules is None or not rules.hits_beside_states or speculation is None or plan is None:
        return
    if not facts.target.recurrent or facts.engine.get("enable_prefix_caching") is False:
        return
    block = min(group.block_size for group in plan.grouping.groups)
    tokens, kept_back = facts.whole("max_num_batched_tokens", 0), speculation.kept_of_each_request
    step = facts.whole("max_num_scheduled_tokens", tokens) or tokens
    longest = min(step, facts.whole("long_prefill_token_threshold", 0) or step)
    if block <= longest and min(longest, tokens - kept_back) < block:
        yield Refusal(
            "step-size",
            f"with prefix caching, states of {facts.target.name} are kept at the end of each block "
            f"of {block} tokens, and of the {tokens} of --max-num-batched-tokens drafts keep "
            f"{kept_back}: a long prompt would wait for ever",
            f"{block + kept_back} tokens or more",
            "raise --max-num-batched-tokens, or switch prefix caching off",
        )


def states_of_all_blocks(facts: ServeFacts) -> Iterator[Refusal]:
    """vLLM's mode of states at the end of every block, where it would take it.

    Without prefix hits it keeps no states at ends of blocks, whatever is asked for; for many
    classes it takes another mode by itself, and 0.23.0's adapter does so for all.
    """
    if facts.rules is None or not facts.target.recurrent:
        return
    if facts.rules.keeps_states_of_all_blocks.isdisjoint(facts.target.architectures):
        return
    # By itself vLLM looks for hits where some layer attends.
    hits = facts.engine.get("enable_prefix_caching", facts.target.has_attention)
    if hits and facts.engine.get("mamba_cache_mode") == "all":
        yield of_all_blocks()


def of_all_blocks() -> Refusal:
    """What that mode is refused with."""
    return Refusal(
        "kept-states",
        "--mamba-cache-mode all was asked for: states at the end of every block. On Ascend states "
        f"are kept at the ends of scheduled chunks, and {host_versions.vllm_ascend()} gives that "
        "mode blocks as long as the longest context, so that no prefix would be found again",
        "states at the ends of chunks",
        "use --mamba-cache-mode align",
    )


CHECKS = (short_steps, steps_short_of_a_block, states_of_all_blocks)
