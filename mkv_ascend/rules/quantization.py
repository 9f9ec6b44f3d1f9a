# SPDX-License-Identifier: Apache-2.0
"""What of quantised weights and caches no operator takes, and dtypes."""

from __future__ import annotations

from collections.abc import Iterator

from mkv_ascend import host_versions
from mkv_ascend.attention.entry import PLAIN_DTYPES, DeviceGeneration
from mkv_ascend.rules.facts import Facts
from mkv_ascend.rules.refusal import Refusal

FLOAT8_METHODS = frozenset({"fp8", "deepseek_v4_fp8", "mxfp8", "modelopt_mxfp8"})
"""vllm-ascend's quantization/fp8_config.py and methods/fp8.py: operators of A5 alone."""
INT8_HEAD_SIZE = 128
"""npu_fused_infer_attention_score: head size with int8 keys and values in NZ format."""
INT8_PREDICTORS = frozenset({"hy_v3"})
"""Model types whose drafting layers load such scales (vLLM's ``*_mtp.py``, on each host)."""


def dtype(facts: Facts) -> Iterator[Refusal]:
    """A model's dtype that no operator takes.

    DeepSeek-V4's windows of latents and the matrix that turns its indexer's queries and keys are
    bfloat16 in vllm-ascend 0.23.0 (models/deepseek_v4.py, attention/dsa_v1.py), whatever the model.
    """
    taken = {"float16", "bfloat16"} | facts.device.extra_dtypes
    if facts.target.is_compressed:
        taken = {"bfloat16"}
    if facts.dtype not in taken:
        whose = ", for DeepSeek-V4's layers" if facts.target.is_compressed else ""
        change = "write --dtype bfloat16, or leave it out"
        yield Refusal("dtype", f"--dtype is {facts.dtype}{whose}", ", ".join(sorted(taken)), change)


def cache_dtype(facts: Facts) -> Iterator[Refusal]:
    """Quantised caches: vllm-ascend takes them from quantised weights, on 0.23 never from this."""
    asked, target, formats = facts.cache_dtype, facts.target, facts.target.formats
    taken = (PLAIN_DTYPES - {"float32"}) | facts.device.extra_dtypes
    if asked == "auto" or asked in taken:
        return
    if asked == "int8" and facts.host.int8_is_an_option:
        decodes = facts.kv_role == "kv_consumer"
        if target.has_indexer or (
            formats is not None and (formats.int8_layers or (formats.has_int8_latents and decodes))
        ):
            return
    is_float8 = asked in ("fp8", "fp8_e4m3") and facts.device.generation is DeviceGeneration.A5
    if is_float8 and target.number("kv_lora_rank") is not None:
        return
    yield Refusal(
        "kv-cache-dtype",
        f"--kv-cache-dtype is {asked}, which no backend of Ascend {facts.device.generation} keeps",
        f"auto, {', '.join(sorted(taken))}; quantised caches (C8) come with weights that "
        "vllm-ascend's tools quantised for them",
        "leave --kv-cache-dtype out",
    )


def float8(facts: Facts) -> Iterator[Refusal]:
    """Weights of 8-bit floating-point numbers where only A5 multiplies them."""
    generation = facts.device.generation
    if generation is DeviceGeneration.A5:
        return
    for model in facts.models:
        method = facts.asked_quantization(model)
        kinds = () if model.formats is None else model.formats.float8_kinds
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


def experts_without_matrices(facts: Facts) -> Iterator[Refusal]:
    """Quantised experts beside some that hand their input on (LongCat-Flash)."""
    for model in facts.models:
        quantised = facts.asked_quantization(model) or model.formats is not None
        if not model.number("zero_expert_num") or not quantised:
            continue
        yield Refusal(
            "weight-format",
            f"the {model.role} {model.name} has experts without matrices (zero_expert_num) beside "
            "quantised ones: nobody has judged what vllm-ascend makes of both",
            "such experts beside experts that are not quantised",
            "choose weights of this model in bfloat16",
        )


def int8_cache(facts: Facts) -> Iterator[Refusal]:
    """Keys and values of 8 bits (C8) whose scales are not loaded, or that no operator takes."""
    for model in facts.models:
        if model.formats is None or not model.formats.int8_layers:
            continue
        asked = f"keys and values of the {model.role} {model.name} are quantised (C8)"
        plain = "leave kv_cache_type out of its quant_model_description.json, or choose weights "
        plain += "without it"
        families = facts.host.int8_cache_families
        if families and not families & set(model.architectures):
            names = ", ".join(model.architectures) or model.model_type
            what = (
                f"{asked}, and {host_versions.vllm_ascend()} does not load their scales for {names}"
            )
            yield Refusal("cache-format", what, ", ".join(sorted(families)), plain)
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


def int8_predictor(facts: Facts) -> Iterator[Refusal]:
    """Drafting layers (method mtp) with keys and values of 8 bits whose scales are not loaded."""
    if facts.draft is None or facts.method != "mtp":
        return
    target = facts.target
    layers = target.number("num_hidden_layers")
    if target.formats is None or layers is None or target.model_type in INT8_PREDICTORS:
        return
    quantised = sorted(layer for layer in target.formats.int8_layers if layer >= layers)
    if quantised:
        yield Refusal(
            "cache-format",
            f"keys and values of drafting layers of {target.name} are quantised (C8), in layer "
            f"{', '.join(map(str, quantised))}, and vLLM does not load their scales for "
            f"{target.model_type}",
            "drafting layers with plain keys and values beside layers of 8 bits; quantised ones "
            f"of {', '.join(sorted(INT8_PREDICTORS))}",
            "choose weights whose drafting layers have no kv_cache_scale, or another draft",
        )


CHECKS = (dtype, cache_dtype, float8, experts_without_matrices, int8_cache, int8_predictor)
