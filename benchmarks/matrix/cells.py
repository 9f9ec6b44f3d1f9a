# SPDX-License-Identifier: Apache-2.0
"""The cells: families of targets, drafts, and the tiny models that stand for them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from mkv_ascend.adapters.installed import adapter

K = 3
"""Draft tokens of a proposal in every cell."""


FLOAT32, ROUNDED = "float32", "rounded"
"""Kinds of references: Hugging Face's model in float32, or, of a family that computes in 16 bits
alone, a model in plain torch that rounds where it does."""


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


@dataclass(frozen=True)
class Draft:
    """A draft with layers of its own: a model of any family, by method ``draft_model``."""

    name: str
    model: str
    triton: bool = False


@dataclass(frozen=True)
class Cell:
    """One target with one draft.

    Attributes:
        target, draft: families, the row and the column.
        method: vLLM's name of the method.
        target_model, draft_model: tiny models; ``draft_model`` is None for methods without one.
        reference_model: tiny model of the target's weights that the reference can load.
        triton: whether vLLM is to find Triton.
        engine: further arguments of ``vllm.LLM``.
        reference: kind of the reference, ``FLOAT32`` or ``ROUNDED``.
    """

    target: str
    draft: str
    method: str
    target_model: str
    draft_model: str | None
    reference_model: str
    triton: bool = False
    engine: dict[str, Any] = field(default_factory=dict)
    reference: str = FLOAT32

    @property
    def name(self) -> str:
        """What ``--only`` takes, such as ``dense/eagle3``."""
        return f"{self.target}/{self.draft}"

    @property
    def models(self) -> list[str]:
        """The tiny models that must be there."""
        named = [self.target_model, self.reference_model, self.draft_model]
        return list(dict.fromkeys(model for model in named if model is not None))


DEEPSEEK_V4: dict[str, Any] = {"dtype": "bfloat16", "block_size": 128}
if not adapter().RULES.compressed_in_one_process:
    DEEPSEEK_V4["distributed_executor_backend"] = "mp"

A_FEW = ("dense", "short conv")
"""Draft models for families whose attention is that of others: one, and one with states."""

TARGETS = (
    Target(
        "dense",
        "llama_target",
        heads={"eagle": "llama_eagle", "eagle3": "llama_eagle3", "dflash": "llama_dflash"},
    ),
    Target(
        "window+full",
        "gemma3",
        heads={"eagle3": "gemma3_eagle3", "dflash": "gpt_oss_dflash"},
        head_targets={"dflash": "gpt_oss"},
    ),
    Target("qwen3", "qwen3", drafts=A_FEW),
    Target("qwen3-moe", "qwen3_moe", drafts=A_FEW),
    Target(
        "qwen3.5",
        "qwen3_5",
        triton=True,
        drafts=A_FEW,
        engine={"language_model_only": True},
    ),
    Target(
        "gpt-oss",
        "gpt_oss",
        heads={"eagle3": "gpt_oss_eagle3", "dflash": "gpt_oss_dflash"},
        drafts=A_FEW,
    ),
    Target(
        "mla",
        "deepseek_v2_target",
        heads={
            "eagle3": "deepseek_v2_eagle3",
            "mtp": "deepseek_v3_mtp",
            "dflash": "deepseek_v2_dflash",
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
        },
        head_targets={"mtp": "qwen3_next_mtp"},
        triton=True,
    ),
    Target(
        "mamba2",
        "granite4",
        heads={"eagle3": "granite4_eagle3", "dflash": "granite4_dflash"},
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
        heads={"mtp": "glm4_moe_mtp"},
        head_targets={"mtp": "glm4_moe_mtp"},
        drafts=A_FEW,
    ),
    Target(
        "minimax-m2",
        "minimax_m2",
        heads={"eagle3": "minimax_m2_eagle3"},
        # vLLM norms its queries and keys by a kernel in Triton.
        triton=True,
        drafts=A_FEW,
    ),
    Target(
        "mimo",
        "mimo",
        heads={"mtp": "mimo_mtp"},
        head_targets={"mtp": "mimo_mtp"},
        drafts=A_FEW,
    ),
    Target(
        "gemma4",
        "gemma4",
        heads={"eagle3": "gemma4_eagle3", "mtp": "gemma4_mtp"},
        drafts=A_FEW,
    ),
    Target(
        "qwen3.5-moe",
        "qwen3_5_moe",
        heads={"mtp": "qwen3_5_moe_mtp"},
        head_targets={"mtp": "qwen3_5_moe_mtp"},
        triton=True,
        drafts=A_FEW,
        engine={"language_model_only": True},
    ),
    Target("kda", "kimi_linear", triton=True, drafts=A_FEW),
    Target(
        "nemotron-h",
        "nemotron_h",
        heads={"mtp": "nemotron_h_mtp"},
        head_targets={"mtp": "nemotron_h_mtp"},
        triton=True,
        drafts=A_FEW,
    ),
    Target(
        "hunyuan3",
        "hy_v3",
        heads={"mtp": "hy_v3_mtp"},
        head_targets={"mtp": "hy_v3_mtp"},
        drafts=A_FEW,
    ),
    Target(
        "ernie4.5-moe",
        "ernie4_5_moe",
        heads={"mtp": "ernie4_5_moe_mtp"},
        head_targets={"mtp": "ernie4_5_moe_mtp"},
        drafts=A_FEW,
    ),
    Target(
        "longcat",
        "longcat_flash",
        heads={"mtp": "longcat_flash_mtp"},
        head_targets={"mtp": "longcat_flash_mtp"},
        drafts=A_FEW,
    ),
    Target(
        "step3.5",
        "step3p5",
        heads={"mtp": "step3p5_mtp"},
        head_targets={"mtp": "step3p5_mtp"},
        drafts=A_FEW,
    ),
)

DRAFTS = (
    Draft("dense", "llama_draft"),
    Draft("window+full", "gemma3_draft"),
    Draft("mla", "deepseek_v2_draft"),
    Draft("gdn", "qwen3_next_draft", triton=True),
    Draft("mamba2", "granite4", triton=True),
    Draft("short conv", "lfm2", triton=True),
)

HEADS = ("eagle3", "mtp", "eagle", "dflash")
"""Methods whose drafts are heads on the target's hidden states, in the order of the table."""

DRAFTLESS = {"ngram": [target.name for target in TARGETS], "suffix": ["dense"]}
"""Methods without a draft model, and the targets they are run with."""

REFERENCES = {
    "deepseek_v3_mtp": "deepseek_v2_target",
    "deepseek_v32_mtp": "deepseek_v32_target",
    "glm4_moe_mtp": "glm4_moe",
    "ernie4_5_moe_mtp": "ernie4_5_moe",
    "hy_v3_mtp": "hy_v3",
    "longcat_flash_mtp": "longcat_flash",
    "mimo_mtp": "mimo",
    "nemotron_h_mtp": "nemotron_h",
    "qwen3_5_moe_mtp": "qwen3_5_moe",
    "qwen3_next_mtp": "qwen3_next",
    "step3p5_mtp": "step3p5",
}
"""MTP checkpoint -> the tiny model of its target's weights; transformers has no MTP layers."""


def all_cells() -> Iterator[Cell]:
    """Every cell, row by row. A head is a cell only where the family has one."""
    for target in TARGETS:
        for draft in DRAFTS:
            if target.drafts and draft.name not in target.drafts:
                continue
            yield Cell(
                target.name,
                draft.name,
                "draft_model",
                target.model,
                draft.model,
                target.model,
                target.triton or draft.triton,
                target.engine,
                target.reference,
            )
        for method in HEADS:
            if method in target.heads:
                yield head_cell(target, method)
        for method, targets in DRAFTLESS.items():
            if target.name not in targets:
                continue
            yield Cell(
                target.name,
                method,
                method,
                target.model,
                None,
                target.model,
                target.triton,
                target.engine,
                target.reference,
            )


def head_cell(target: Target, method: str) -> Cell:
    """The cell of the family's head of ``method``."""
    model = target.head_targets.get(method, target.model)
    return Cell(
        target.name,
        method,
        method,
        model,
        target.heads[method],
        REFERENCES.get(model, model),
        target.triton,
        target.engine,
        target.reference,
    )


def find_cells(patterns: list[str]) -> list[Cell]:
    """The cells that ``patterns`` name: a cell, a target (``dense/``) or a draft (``/dense``).

    Raises ValueError, with the names there are, for a pattern that names none.
    """
    cells = list(all_cells())
    if not patterns:
        return cells
    found = []
    for pattern in patterns:
        named = [cell for cell in cells if matches(cell, pattern)]
        if not named:
            names = ", ".join(cell.name for cell in cells)
            raise ValueError(f"no cell is called {pattern!r}; there are: {names}")
        found += named
    return list({cell.name: cell for cell in found}.values())


def matches(cell: Cell, pattern: str) -> bool:
    """Whether ``pattern`` is the cell's name, its target and ``/``, or ``/`` and its draft."""
    return pattern in (cell.name, f"{cell.target}/", f"/{cell.draft}")
