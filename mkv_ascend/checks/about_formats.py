# SPDX-License-Identifier: Apache-2.0
"""What of quantised weights and caches no operator takes."""

from __future__ import annotations

from collections.abc import Iterator

from mkv_ascend import host_versions
from mkv_ascend.attention.entry import DeviceGeneration
from mkv_ascend.checks.facts import ServeFacts
from mkv_ascend.checks.model import ModelFacts
from mkv_ascend.checks.refusal import Refusal

__all__ = ["CHECKS"]

FLOAT8_METHODS = frozenset({"fp8", "deepseek_v4_fp8", "mxfp8"})
"""vllm-ascend's quantization/fp8_config.py and methods/fp8.py: operators of A5 alone."""
INT8_HEAD_SIZE = 128
"""npu_fused_infer_attention_score: head size with int8 keys and values in NZ format."""
INT8_PREDICTORS = frozenset({"hy_v3"})
"""Model types whose drafting layers load such scales (vLLM's ``*_mtp.py``, on each host)."""


def _models(facts: ServeFacts) -> Iterator[ModelFacts]:
    yield facts.target
    # A target's own MTP layers are of the same weights.
    if facts.draft is not None and facts.draft.name != facts.target.name:
        yield facts.draft


def _asked_method(facts: ServeFacts, model: ModelFacts) -> str | None:
    options = {} if facts.speculation is None else facts.speculation.options
    given = facts.engine if model is facts.target else options
    return given.get("quantization") or model.quantization


def float8(facts: ServeFacts) -> Iterator[Refusal]:
    """Weights of 8-bit floating-point numbers where only A5 multiplies them."""
    generation = facts.device.generation
    if generation is DeviceGeneration.A5:
        return
    for model in _models(facts):
        method = _asked_method(facts, model)
        kinds = () if model.formats is None else model.formats.float8_kinds
        if facts.rules is not None and method not in (None, *facts.rules.quantizations):
            continue  # which about_command refuses
        if method in FLOAT8_METHODS:
            kinds = (str(method),)
        if not kinds:
            continue
        yield Refusal(
            "weight-format",
            f"the weights of the {model.role} {model.name} are quantised by {', '.join(kinds)}, "
            f"which no operator of Ascend {generation} multiplies",
            "Ascend A5; plain weights, or those that ModelSlim quantised to whole numbers "
            "(W8A8, W8A8_DYNAMIC and others)",
            "choose such weights of this model",
        )


def experts_without_matrices(facts: ServeFacts) -> Iterator[Refusal]:
    """Quantised experts beside some that hand their input on (LongCat-Flash)."""
    for model in _models(facts):
        quantised = _asked_method(facts, model) or model.formats is not None
        if not model.number("zero_expert_num") or not quantised:
            continue
        yield Refusal(
            "weight-format",
            f"the {model.role} {model.name} has experts without matrices (zero_expert_num) beside "
            "quantised ones: nobody has judged what vllm-ascend makes of both",
            "such experts beside experts that are not quantised",
            "choose weights of this model in bfloat16",
        )


def int8_cache(facts: ServeFacts) -> Iterator[Refusal]:
    """Keys and values of 8 bits (C8) whose scales are not loaded, or that no operator takes."""
    for model in _models(facts):
        if model.formats is None or not model.formats.int8_layers:
            continue
        asked = f"keys and values of the {model.role} {model.name} are quantised (C8)"
        plain = "leave kv_cache_type out of its quant_model_description.json, or choose weights "
        plain += "without it"
        families = () if facts.rules is None else facts.rules.int8_cache_families
        if families and not families & set(model.architectures):
            yield Refusal(
                "cache-format",
                f"{asked}, and {host_versions.vllm_ascend()} does not load their scales for "
                f"{', '.join(model.architectures) or model.model_type}",
                ", ".join(sorted(families)),
                plain,
            )
        if model.head_size != INT8_HEAD_SIZE:
            yield Refusal(
                "cache-format",
                f"{asked}, with heads of {model.head_size} elements",
                f"heads of {INT8_HEAD_SIZE} elements (npu_fused_infer_attention_score)",
                plain,
            )
        if facts.dtype != "bfloat16":
            yield Refusal(
                "cache-format",
                f"{asked}, and --dtype is {facts.dtype}",
                "bfloat16 (npu_fused_infer_attention_score)",
                "write --dtype bfloat16",
            )


def int8_predictor(facts: ServeFacts) -> Iterator[Refusal]:
    """Drafting layers (method mtp) with keys and values of 8 bits whose scales are not loaded."""
    draft, speculation = facts.draft, facts.speculation
    if draft is None or speculation is None or speculation.method != "mtp":
        return
    layers = draft.number("num_hidden_layers")
    if draft.formats is None or layers is None or draft.model_type in INT8_PREDICTORS:
        return
    quantised = sorted(layer for layer in draft.formats.int8_layers if layer >= layers)
    if quantised:
        yield Refusal(
            "cache-format",
            f"keys and values of drafting layers of {draft.name} are quantised (C8), in layer "
            f"{', '.join(map(str, quantised))}, and vLLM does not load their scales for "
            f"{draft.model_type}",
            "drafting layers with plain keys and values beside layers of 8 bits; quantised ones "
            f"of {', '.join(sorted(INT8_PREDICTORS))}",
            "choose weights whose drafting layers have no kv_cache_scale, or another draft",
        )


CHECKS = (float8, experts_without_matrices, int8_cache, int8_predictor)
