# SPDX-License-Identifier: Apache-2.0
"""Facts of configurations, made without a host: what cases of rules are built of."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mkv_ascend.adapters import installed
from mkv_ascend.attention.entry import DeviceGeneration
from mkv_ascend.config import parse_config
from mkv_ascend.layout.kind import Role
from mkv_ascend.rules.facts import DeviceFacts, Facts, SpeculationFacts
from mkv_ascend.rules.model import ModelFacts, WeightFormats

OLD, NEW = (
    next(one.RULES for one in installed.adapters() if one.RULES.vllm == release)
    for release in ("0.23", "0.30")
)
A2 = DeviceFacts(8, 64 << 30, DeviceGeneration.A2, "a test")
A3 = DeviceFacts(8, 64 << 30, DeviceGeneration.A3, "a test")
A5 = DeviceFacts(8, 64 << 30, DeviceGeneration.A5, "a test")
ON_V2: dict[str, Any] = {"runner": "v2", "host": NEW}
LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 128256,
}
MOE = {**LLAMA, "model_type": "deepseek_v3", "kv_lora_rank": 512, "qk_rope_head_dim": 64}
MOE["n_routed_experts"] = 64
V4 = {**LLAMA, "model_type": "deepseek_v4", "compress_ratios": [4, 128]}
LFM2 = {**LLAMA, "model_type": "lfm2", "conv_L_cache": 3}
JAMBA = {**LLAMA, "model_type": "jamba"}
WINDOWS = {**LLAMA, "layer_types": ["sliding_attention"], "sliding_window": 512}
HEAD = {**LLAMA, "num_hidden_layers": 1}
SPARSE = {**MOE, "model_type": "deepseek_v32", "index_topk": 64}
GLM = {**SPARSE, "indexer_types": ["full", "shared"], "index_share_for_mtp_iteration": True}
UNKEPT = {**GLM, "indexer_types": ["full"]}
OF_RANKS = {"enable_dsa_cp": True}
INT8_LATENTS = WeightFormats(frozenset({"W8A8"}), has_int8_latents=True)
IN_EIGHT_BITS = WeightFormats(frozenset({"W8A8"}), frozenset({0}))


def model(
    values: dict[str, Any],
    role: Role = Role.TARGET,
    *,
    recurrent: bool = False,
    alone: bool = False,
    formats: WeightFormats | None = None,
) -> ModelFacts:
    name = f"the {role} of a test"
    given = (role, name, values, values, recurrent or alone, alone, formats)
    return ModelFacts(*given, plain_head_size=None if alone else values["head_dim"])


def facts(
    values: dict[str, Any] = LLAMA, *, ours: dict[str, Any] | None = None, **given: Any
) -> Facts:
    options = parse_config({"mkv_ascend": ours or {}})
    kept = {"target": model(values), "device": A2, "host": OLD, "max_model_len": 8192}
    return Facts(options=options, **{**kept, **given})


def pair(
    draft: dict[str, Any] = HEAD,
    method: str = "draft_model",
    tokens: int = 3,
    *,
    target: dict[str, Any] = LLAMA,
    recurrent: bool = False,
    alone: bool = False,
    options: dict[str, Any] | None = None,
    **given: Any,
) -> Facts:
    found = model(draft, Role.DRAFT, recurrent=recurrent, alone=alone)
    if method == "mtp":
        found = replace(found, name=model(target).name)
    speculation = SpeculationFacts(method, tokens, options or {})
    return facts(target, speculation=speculation, draft=found, **given)


def looked_up(values: dict[str, Any] = LLAMA, tokens: int = 3, **given: Any) -> Facts:
    return facts(values, speculation=SpeculationFacts("ngram", tokens, {}), **given)
