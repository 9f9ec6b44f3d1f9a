# SPDX-License-Identifier: Apache-2.0
"""How often builders run in a proposal, and for which pass, counted while one is made."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest
import torch

from mkv_ascend.drafting.needs import distinct_needs
from tests.support.fake_draft import FakeBuilder
from tests.unit.drafting.fake_engine import Case, Engine


@torch.inference_mode()
@pytest.mark.parametrize("shares", [(True,) * 3, (False,) * 3, (True, False, True)])
@pytest.mark.parametrize("k", [1, 2, 5])
def test_builders_run_as_often_as_is_said(shares: tuple[bool, ...], k: int) -> None:
    engine = Engine(Case("attention", k, (4, 8, 16), shares, (False,) * 3))
    engine.step()
    assert engine.needs.builds
    assert engine.needs.builds == engine.needs.builds_per_proposal(later_passes=k - 1)


class OtherBuilder(FakeBuilder):
    """Of another backend, whose metadata is of another class."""


def test_builders_of_two_backends_never_share_a_run() -> None:
    builders = [
        FakeBuilder(True, False),
        OtherBuilder(True, False),
        FakeBuilder(True, False),
        FakeBuilder(True, True),
        OtherBuilder(True, False),
    ]
    needs = [(need.builder, need.groups) for need in distinct_needs(builders)]
    assert needs == [(builders[0], (0, 2)), (builders[1], (1, 4)), (builders[3], (3,))]


@torch.inference_mode()
def test_a_builder_that_shares_nothing_is_told_each_pass_by_its_number() -> None:
    engine = Engine(Case("attention", 4, shares=(False,)))
    told: list[int] = []
    made = FakeBuilder.build

    def build(builder: FakeBuilder, batch: Any, *others: Any) -> Any:
        told.append(batch.index)
        return made(builder, batch, *others)

    with patch.object(FakeBuilder, "build", build):
        engine.step()
    assert told == [0, 1, 2, 3]
