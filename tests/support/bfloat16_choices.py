# SPDX-License-Identifier: Apache-2.0
"""Judging engines in bfloat16, by references that round where rounding decides more than ties."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tests.support import deepseek_v4, reference
from tests.support.loop_judgement import REFERENCE_OF, drafter_of
from tests.support.pairs import TIES
from tests.support.rounded_sparse import Rounding
from tests.support.rounded_sparse import logits_of as rounded_logits_of
from tests.support.tiny_models import model_directory

if TYPE_CHECKING:
    import torch

    Rows = Callable[[Sequence[int], Sequence[int]], torch.Tensor]

NEAR_TIE, SHARE = TIES["bfloat16"]


def rows_of(model: str) -> Rows:
    """Hugging Face's logits; in the engine's dtype where a rounding chooses other keys."""
    directory = model_directory(REFERENCE_OF.get(model, model))

    def rows(context: Sequence[int], tokens: Sequence[int]) -> torch.Tensor:
        known = [*context, *tokens]
        if model == "deepseek_v4_fitted":
            logits = deepseek_v4.load(directory).logits(known)
        elif model == "deepseek_v32_target":
            logits = rounded_logits_of(directory, known, Rounding())
        else:
            logits = reference.logits_of(directory, known)
        return logits[len(context) - 1 :]

    return rows


def assert_choices(rows: Rows, said: list[reference.DraftProposal]) -> None:
    """Each token is the choice after those before it, except for a few near ties."""
    report = reference.judge(rows, said, NEAR_TIE)
    assert report.checked > 0
    assert not report.wrong, "\n".join(map(str, report.wrong[:5]))
    assert len(report.near_ties) <= max(1, SHARE * report.checked), report.near_ties


def rows_of_draft(target: str, draft: str, method: str, k: int) -> Rows:
    """What says which draft tokens are right."""
    directory = model_directory(REFERENCE_OF.get(target, target))
    if target == "deepseek_v4_fitted" and method == "mtp":
        return deepseek_v4.DraftLayer(directory).rows
    return drafter_of(directory, draft, method, k).rows
