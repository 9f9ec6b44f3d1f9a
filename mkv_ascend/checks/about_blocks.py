# SPDX-License-Identifier: Apache-2.0
"""Drafts that draft all tokens of a proposal in one pass over a block of mask tokens."""

from __future__ import annotations

from collections.abc import Iterator

from mkv_ascend.checks.about_draft_options import has_own_proposer
from mkv_ascend.checks.block_layers import which_have_windows, window_size
from mkv_ascend.checks.facts import ServeFacts
from mkv_ascend.checks.model import ModelFacts
from mkv_ascend.checks.refusal import Refusal

__all__ = ["CHECKS"]


def _block_draft(facts: ServeFacts) -> tuple[str, ModelFacts] | None:
    """Method and draft; None for other methods, and where the host alone has a proposer."""
    speculation, draft = facts.speculation, facts.draft
    if speculation is None or draft is None or not speculation.drafts_blocks:
        return None
    return None if has_own_proposer(facts) else (speculation.method, draft)


def blocks_of_masks(facts: ServeFacts) -> Iterator[Refusal]:
    """What methods dflash and dspark cannot be combined with."""
    found = _block_draft(facts)
    if found is None:
        return
    method, _ = found
    asked = {
        "prefill_context_parallel_size": facts.whole("prefill_context_parallel_size", 1) > 1,
        "enable_flashcomm1": facts.ascend("enable_flashcomm1") and facts.tensor_parallel > 1,
        "enable_reduce_sample": facts.ascend("enable_reduce_sample"),
        "lmhead_tensor_parallel_size": facts.splits_vocabulary,
    }
    for what, given in asked.items():
        if given:
            yield Refusal(
                "dflash",
                f"method {method} with {what}: it attends without a causal mask, over all tokens "
                "of a request, on each rank",
                f"{method} without it, or another method",
                f"leave {what} out",
            )


def windows_in_blocks(facts: ServeFacts) -> Iterator[Refusal]:
    """Windows that the layers of a draft of method dflash or dspark cannot have."""
    found = _block_draft(facts)
    if found is None:
        return
    method, draft = found
    windows = which_have_windows(draft.text)
    have = f"method {method}, and layers of the draft {draft.name} have sliding windows"
    if not any(windows):
        return
    if not (facts.rules is not None and facts.rules.windows_in_blocks):
        yield Refusal(
            "dflash",
            f"{have}, which this vLLM's class of such drafts leaves out",
            "a draft whose layers attend to all tokens",
            "choose such a draft, or a newer vLLM",
        )
    elif facts.runner == "v1" and not all(windows):
        yield Refusal(
            "dflash",
            f"{have} beside layers that attend to all tokens, which vLLM does not build on model "
            "runner V1",
            "model runner V2",
            "set VLLM_USE_V2_MODEL_RUNNER=1",
        )
    elif not window_size(draft.text):
        yield Refusal(
            "dflash",
            f"{have} of a size that its config.json does not say: there is neither swa_window_size "
            "in dflash_config nor sliding_window, which Qwen3's class reads beside "
            "use_sliding_window alone",
            "windows of a size",
            "write swa_window_size into dflash_config",
        )


CHECKS = (blocks_of_masks, windows_in_blocks)
