# SPDX-License-Identifier: Apache-2.0
"""``use_local_argmax_reduction``: ranks tell each other their likeliest tokens, and no logits.

vLLM 0.30.0's model runner V2 asks the draft's class for them once weights are loaded. Not every
class can say it. Model runner V1 of vllm-ascend passes over the option.
"""

from __future__ import annotations

from collections.abc import Iterator

from mkv_ascend import host_versions
from mkv_ascend.checks.about_draft_options import host_drafts
from mkv_ascend.checks.facts import ServeFacts, SpeculationFacts
from mkv_ascend.checks.model import ModelFacts
from mkv_ascend.checks.refusal import Refusal

__all__ = ["CHECKS", "says_top_tokens"]

MODELS = frozenset(
    f"{name}ForCausalLM"
    for name in (
        *("Cwm", "Ernie4_5", "Glm", "IQuestCoder", "InternLM3", "LLaMA", "Llama", "Llama4"),
        *("Ministral3", "Mistral", "Phi3", "Qwen3", "TeleChat2", "TeleChat3", "TeleFLM"),
    )
)
"""Classes of vLLM 0.30.0, by their names in a config.json, that say their likeliest tokens."""
HEADS = frozenset({"DFlashDraftModel", "PEagleDraftModel", "LlamaForCausalLMEagle3"}) | frozenset(
    f"{kind}ForCausalLM"
    for kind in (
        *("Eagle3DeepseekV2", "Eagle3DeepseekV3", "Eagle3Llama", "Eagle3MiniMaxM2"),
        *("Eagle3Qwen2_5vl", "Eagle3Qwen3", "Eagle3Qwen3vl", "EagleLlama4", "EagleLlama"),
        *("EagleMistral", "PeagleLlama", "PeagleQwen3"),
    )
)
LAYERS = ("qwen3_5_text", "qwen3_5_moe_text", "gemma4_text")
"""Model types whose layers that drafts (method mtp) do."""


def says_top_tokens(method: str, draft: ModelFacts) -> bool:
    """Whether vLLM 0.30.0's class of the draft says its likeliest tokens."""
    if method == "mtp":
        return draft.model_type in LAYERS
    if method == "draft_model":
        return not MODELS.isdisjoint(draft.architectures)
    # vLLM puts the method before the name of a head that has its target's.
    prefixed = {f"{method.capitalize()}{name}" for name in draft.architectures}
    return not HEADS.isdisjoint({*draft.architectures, *prefixed})


def top_tokens(facts: ServeFacts) -> Iterator[Refusal]:
    """What model runner V2 refuses behind the loading of the draft."""
    speculation, draft = facts.speculation, facts.draft
    if facts.runner != "v2" or speculation is None or draft is None or host_drafts(facts):
        return
    if speculation.options.get("use_local_argmax_reduction"):
        yield from _refusals(speculation, draft)


def _refusals(speculation: SpeculationFacts, draft: ModelFacts) -> Iterator[Refusal]:
    leave_out = "leave use_local_argmax_reduction out"
    if speculation.options.get("draft_sample_method") == "probabilistic":
        yield Refusal(
            "draft-option",
            "use_local_argmax_reduction and a draft_sample_method that is probabilistic are set, "
            "and a token is drawn from logits, which vLLM does not gather then",
            "one of the two",
            leave_out,
        )
    if not says_top_tokens(speculation.method, draft):
        yield Refusal(
            "draft-option",
            f"use_local_argmax_reduction is set, and {host_versions.vllm()} has no get_top_tokens "
            f"for {draft.name} ({draft.model_type}) as a draft of method {speculation.method}",
            "models and heads of Llama's kind, Qwen3, method dflash, mtp of Qwen3.5 and Gemma 4",
            leave_out,
        )


CHECKS = (top_tokens,)
