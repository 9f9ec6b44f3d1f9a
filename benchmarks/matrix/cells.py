# SPDX-License-Identifier: Apache-2.0
"""The cells: a family of targets with a draft each, and the tiny models that stand for them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from benchmarks.matrix.families import FLOAT32, TARGETS, Target

K = 3
"""Draft tokens of a proposal in every cell."""


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


DRAFTS = (
    Draft("dense", "llama_draft"),
    Draft("window+full", "gemma3_draft"),
    Draft("mla", "deepseek_v2_draft"),
    Draft("gdn", "qwen3_next_draft", triton=True),
    Draft("mamba2", "granite4", triton=True),
    Draft("short conv", "lfm2", triton=True),
)

HEADS = ("eagle3", "mtp", "eagle", "dflash", "dspark")
"""Methods whose drafts are heads on the target's hidden states, in the order of the table."""

UNKNOWN_TO_FIRST_HOST = frozenset({"dspark"})
"""Methods of newer releases of vLLM: 0.23.0 refuses their names, whatever the models are. Their
cells have no result on the first host, and nothing is started there."""

DRAFTLESS = {"ngram": [target.name for target in TARGETS], "suffix": ["dense"]}
"""Methods without a draft model, and the targets they are run with."""

REFERENCES = {
    "deepseek_v3_mtp": "deepseek_v2_target",
    "deepseek_v32_mtp": "deepseek_v32_target",
    "exaone_moe_mtp": "exaone_moe",
    "glm4_moe_lite_mtp": "glm4_moe_lite",
    "glm4_moe_mtp": "glm4_moe",
    "ernie4_5_moe_mtp": "ernie4_5_moe",
    "hy_v3_mtp": "hy_v3",
    "longcat_flash_mtp": "longcat_flash",
    "mimo_mtp": "mimo",
    "mimo_v2_mtp": "mimo_v2",
    "nemotron_h_mtp": "nemotron_h",
    "openpangu_mtp": "openpangu",
    "qwen3_5_moe_mtp": "qwen3_5_moe",
    "qwen3_5_mtp": "qwen3_5",
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
