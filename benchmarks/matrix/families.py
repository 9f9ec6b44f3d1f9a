# SPDX-License-Identifier: Apache-2.0
"""Families of targets, each with the tiny models that stand for it: the rows of the matrix."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from mkv_ascend.adapters.installed import adapter

FLOAT32, ROUNDED = "float32", "rounded"
"""Kinds of references: Hugging Face's model in float32, or, of a family that the host computes in
16 bits alone, a model in plain torch that rounds where it does."""


@dataclass(frozen=True)
class Target:
    """A family of targets.

    Attributes:
        name: of the family.
        model: tiny model that stands for it.
        heads: method of drafting -> the tiny head of that method for this family.
        head_targets: method -> the tiny model that its head belongs to, where it is not ``model``.
        drafts: names of the draft models that it is run with; all of them if empty.
        triton: whether its layers need Triton, which is what a real set-up has too.
        engine: arguments of ``vllm.LLM`` that this family needs.
        reference: kind of the reference, ``FLOAT32`` or ``ROUNDED``.
    """

    name: str
    model: str
    heads: dict[str, str] = field(default_factory=dict)
    head_targets: dict[str, str] = field(default_factory=dict)
    drafts: tuple[str, ...] = ()
    triton: bool = False
    engine: dict[str, Any] = field(default_factory=dict)
    reference: str = FLOAT32


DEEPSEEK_V4: dict[str, Any] = {"dtype": "bfloat16"}
if not adapter().RULES.compressed_in_one_process:
    DEEPSEEK_V4["distributed_executor_backend"] = "mp"

STEP3P5: dict[str, Any] = {}
if any(
    family.is_of(["Step3p5ForCausalLM"], "float32", drafts=False)
    for family in adapter().RULES.unserved_families
):
    STEP3P5["dtype"] = "bfloat16"

A_FEW = ("dense", "short conv")
"""Draft models for families whose attention is that of others: one, and one with states. A family
has further ones whose layers meet its own kinds of layers nowhere else."""

TARGETS = (
    Target(
        "dense",
        "llama_target",
        heads={
            "eagle": "llama_eagle",
            "eagle3": "llama_eagle3",
            "dflash": "llama_dflash",
            "dspark": "llama_dspark",
        },
    ),
    Target(
        "window+full",
        "gemma3",
        heads={"eagle3": "gemma3_eagle3", "dflash": "gpt_oss_dflash"},
        head_targets={"dflash": "gpt_oss"},
    ),
    Target(
        "qwen3",
        "qwen3",
        heads={"eagle3": "qwen3_eagle3", "dflash": "qwen3_dflash", "dspark": "qwen3_dspark"},
        drafts=A_FEW,
    ),
    Target(
        "qwen3-moe",
        "qwen3_moe",
        heads={
            "eagle3": "qwen3_moe_eagle3",
            "dflash": "qwen3_moe_dflash",
            "dspark": "qwen3_moe_dspark",
        },
        drafts=A_FEW,
    ),
    Target(
        "qwen3.5",
        "qwen3_5",
        heads={
            "eagle3": "qwen3_5_eagle3",
            "mtp": "qwen3_5_mtp",
            "dflash": "qwen3_5_dflash",
            "dspark": "qwen3_5_dspark",
        },
        head_targets={"mtp": "qwen3_5_mtp"},
        triton=True,
        drafts=(*A_FEW, "gdn"),
        engine={"language_model_only": True},
    ),
    Target(
        "gpt-oss",
        "gpt_oss",
        heads={"eagle3": "gpt_oss_eagle3", "dflash": "gpt_oss_dflash", "dspark": "gpt_oss_dspark"},
        drafts=(*A_FEW, "window+full", "mla"),
    ),
    Target(
        "mla",
        "deepseek_v2_target",
        heads={
            "eagle3": "deepseek_v2_eagle3",
            "mtp": "deepseek_v3_mtp",
            "dflash": "deepseek_v2_dflash",
            "dspark": "deepseek_v2_dspark",
        },
        # An MTP checkpoint is target and draft at once.
        head_targets={"mtp": "deepseek_v3_mtp"},
    ),
    Target(
        "dsa",
        "deepseek_v32_target",
        heads={
            "eagle3": "deepseek_v32_eagle3",
            "mtp": "deepseek_v32_mtp",
            "dflash": "deepseek_v32_dflash",
            "dspark": "deepseek_v32_dspark",
        },
        head_targets={"mtp": "deepseek_v32_mtp"},
    ),
    Target(
        "gdn",
        "qwen3_next",
        heads={
            "eagle3": "qwen3_next_eagle3",
            "mtp": "qwen3_next_mtp",
            "dflash": "qwen3_next_dflash",
            "dspark": "qwen3_next_dspark",
        },
        head_targets={"mtp": "qwen3_next_mtp"},
        triton=True,
    ),
    Target(
        "mamba2",
        "granite4",
        heads={
            "eagle3": "granite4_eagle3",
            "dflash": "granite4_dflash",
            "dspark": "granite4_dspark",
        },
        triton=True,
    ),
    Target(
        "short conv",
        "lfm2",
        heads={"eagle3": "lfm2_eagle3", "dflash": "lfm2_dflash"},
        triton=True,
    ),
    Target(
        "deepseek-v4",
        "deepseek_v4_fitted",
        heads={"eagle3": "llama_eagle3", "mtp": "deepseek_v4_fitted"},
        engine=DEEPSEEK_V4,
        reference=ROUNDED,
    ),
    Target(
        "glm4-moe",
        "glm4_moe",
        heads={"eagle3": "glm4_moe_eagle3", "mtp": "glm4_moe_mtp"},
        head_targets={"mtp": "glm4_moe_mtp"},
        drafts=A_FEW,
    ),
    Target(
        "glm4.7-flash",
        "glm4_moe_lite",
        heads={"mtp": "glm4_moe_lite_mtp"},
        head_targets={"mtp": "glm4_moe_lite_mtp"},
        drafts=(*A_FEW, "mla"),
    ),
    Target(
        "minimax-m2",
        "minimax_m2",
        heads={"eagle3": "minimax_m2_eagle3"},
        # vLLM norms its queries and keys by a kernel in Triton.
        triton=True,
        drafts=(*A_FEW, "window+full"),
    ),
    Target(
        "mimo",
        "mimo",
        heads={"eagle3": "mimo_eagle3", "mtp": "mimo_mtp"},
        head_targets={"mtp": "mimo_mtp"},
        drafts=A_FEW,
    ),
    Target(
        "gemma4",
        "gemma4",
        heads={"eagle3": "gemma4_eagle3", "mtp": "gemma4_mtp"},
        drafts=(*A_FEW, "window+full", "mla"),
    ),
    Target(
        "qwen3.5-moe",
        "qwen3_5_moe",
        heads={"eagle3": "qwen3_5_moe_eagle3", "mtp": "qwen3_5_moe_mtp"},
        head_targets={"mtp": "qwen3_5_moe_mtp"},
        triton=True,
        drafts=(*A_FEW, "gdn"),
        engine={"language_model_only": True},
    ),
    Target("kda", "kimi_linear", triton=True),
    Target(
        "nemotron-h",
        "nemotron_h",
        heads={"mtp": "nemotron_h_mtp"},
        head_targets={"mtp": "nemotron_h_mtp"},
        triton=True,
        drafts=(*A_FEW, "mamba2"),
    ),
    Target(
        "hunyuan3",
        "hy_v3",
        heads={"eagle3": "hy_v3_eagle3", "mtp": "hy_v3_mtp"},
        head_targets={"mtp": "hy_v3_mtp"},
        drafts=A_FEW,
    ),
    Target(
        "ernie4.5-moe",
        "ernie4_5_moe",
        heads={"eagle3": "ernie4_5_moe_eagle3", "mtp": "ernie4_5_moe_mtp"},
        head_targets={"mtp": "ernie4_5_moe_mtp"},
        drafts=A_FEW,
    ),
    Target(
        "exaone-moe",
        "exaone_moe",
        heads={"mtp": "exaone_moe_mtp"},
        head_targets={"mtp": "exaone_moe_mtp"},
        drafts=(*A_FEW, "window+full"),
    ),
    Target(
        "longcat",
        "longcat_flash",
        heads={"mtp": "longcat_flash_mtp"},
        head_targets={"mtp": "longcat_flash_mtp"},
        drafts=(*A_FEW, "mla"),
    ),
    Target(
        "step3.5",
        "step3p5",
        heads={"mtp": "step3p5_mtp"},
        head_targets={"mtp": "step3p5_mtp"},
        drafts=(*A_FEW, "window+full"),
        engine=STEP3P5,
        reference=ROUNDED if STEP3P5 else FLOAT32,
    ),
    Target(
        "openpangu",
        "openpangu",
        heads={"mtp": "openpangu_mtp"},
        head_targets={"mtp": "openpangu_mtp"},
        drafts=A_FEW,
        # Its configuration is code beside its weights.
        engine={"trust_remote_code": True},
    ),
    Target(
        "mimo-v2",
        "mimo_v2",
        heads={"eagle3": "mimo_v2_eagle3", "mtp": "mimo_v2_mtp"},
        head_targets={"mtp": "mimo_v2_mtp"},
        drafts=(*A_FEW, "window+full"),
        # As openPangu's.
        engine={"trust_remote_code": True},
    ),
)
