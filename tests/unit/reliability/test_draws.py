# SPDX-License-Identifier: Apache-2.0
"""Right draws pass, and draws that favour likely tokens, or another temperature, are noticed."""

from __future__ import annotations

import pytest
import torch

from reliability.draws import Draws

GENERATOR = torch.Generator().manual_seed(3)
ROWS = torch.randn(4000, 4, generator=GENERATOR, dtype=torch.float64)


def drawn(temperature: float = 1.0, forced: float = 0.0) -> Draws:
    """Draws at a temperature; a share of them is the likeliest whatever the chance says."""
    found = Draws()
    for row in ROWS:
        chosen = int(torch.multinomial((row / temperature).softmax(-1), 1, generator=GENERATOR))
        if float(torch.rand(1, generator=GENERATOR)) < forced:
            chosen = int(row.argmax())
        found.add(row.log_softmax(-1), chosen)
    return found


def test_right_draws_pass() -> None:
    found = drawn()
    assert found.count == len(ROWS)
    assert 0.0 < abs(found.deviation) < 4.0
    assert found.problems() == []


@pytest.mark.parametrize(
    ("wrong", "kind"),
    [
        ({"temperature": 0.7}, "likely"),
        ({"temperature": 1.5}, "unlikely"),
        ({"forced": 0.2}, "likely"),
    ],
)
def test_wrong_draws_are_noticed(wrong: dict[str, float], kind: str) -> None:
    (problem,) = drawn(**wrong).problems()
    assert f"too {kind}" in problem


def test_a_few_draws_say_nothing_and_sums_are_those_of_all() -> None:
    few = Draws(count=199, excess=100.0, variance=1.0)
    assert few.problems() == []
    assert Draws().deviation == 0.0
    few += Draws(count=1, excess=-40.0, variance=3.0)
    assert (few.count, few.deviation) == (200, 30.0)
    assert len(few.problems()) == 1
