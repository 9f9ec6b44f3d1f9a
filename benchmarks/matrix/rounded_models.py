# SPDX-License-Identifier: Apache-2.0
"""What judges families that compute in 16 bits: models that round where they do, and requests."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.matrix import prompts
from benchmarks.matrix.cells import Cell, K
from tests.support import deepseek_v4, rounded_step3p5, speculation
from tests.support.loop_judgement import drafter_of
from tests.support.tiny_models import model_directory

if TYPE_CHECKING:
    import torch

MIXED = prompts.Workload((122, 10, 135, 6, 60, 14, 125, 8))
"""Shorter than other families' requests, for DeepSeek-V4's layers are many times larger: below and
past a window of 128 and a group of 128, two crossing while they decode. No decks: the fitted model
has not learned them, and to a draft that has, all letters that are left are nearly equal."""

COMMON = prompts.Workload((1, 10, 6, 14, 2, 25, 8, 3), common=257)
"""Two blocks of 128 tokens in common and one more token."""

TEXTS = dataclasses.replace(prompts.MIXED, decks=False)
"""As long as other families' requests. No decks: to a draft with short convolutions half of their
letters are near ties in bfloat16."""


@dataclass(frozen=True)
class RoundedModel:
    """What judges one family.

    Attributes:
        rows: folder of the target, a context and tokens -> its logits behind the context and each
            of the tokens.
        drafter: folder of the target and a cell that has a draft -> which draft tokens are right.
        mixed, common: the requests, without and with prefix hits.
    """

    rows: Callable[[Path, Sequence[int], Sequence[int]], torch.Tensor]
    drafter: Callable[[Path, Cell], speculation.Drafter]
    mixed: prompts.Workload
    common: prompts.Workload


def rows_of_deepseek_v4(
    target: Path, context: Sequence[int], tokens: Sequence[int]
) -> torch.Tensor:
    """``RoundedModel.rows``."""
    return deepseek_v4.load(target).logits([*context, *tokens])[len(context) - 1 :]


def drafter_of_deepseek_v4(target: Path, cell: Cell) -> speculation.Drafter:
    """Its own layer rounds, too; Hugging Face in float32 judges other drafts."""
    if cell.method == "mtp":
        return deepseek_v4.DraftLayer(target)
    assert cell.draft_model is not None
    return drafter_of(target, cell.draft_model, cell.method, K)


def drafter_of_step3p5(target: Path, cell: Cell) -> speculation.Drafter:
    """Every draft rounds."""
    assert cell.draft_model is not None
    directory = model_directory(cell.draft_model)
    if cell.method == "mtp":
        return rounded_step3p5.RoundedLayer(directory, target)
    return rounded_step3p5.RoundedDraftModel(directory)


MODELS = {
    "deepseek-v4": RoundedModel(rows_of_deepseek_v4, drafter_of_deepseek_v4, MIXED, COMMON),
    "step3.5": RoundedModel(rounded_step3p5.rows, drafter_of_step3p5, TEXTS, prompts.COMMON),
}
"""By name of the family."""
