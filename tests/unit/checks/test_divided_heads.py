# SPDX-License-Identifier: Apache-2.0
"""Heads that ranks do not divide, and drafts that are whole on each rank."""

from __future__ import annotations

import pytest

from mkv_ascend.checks.about_command import heads
from mkv_ascend.checks.facts import ServeFacts, SpeculationFacts
from mkv_ascend.checks.model import ModelFacts
from mkv_ascend.config import MkvConfig
from mkv_ascend.layout.kind import Role
from tests.support.host_checks import DEVICE


@pytest.mark.parametrize(("ranks", "refused"), [(None, True), (1, False), (2, True)])
def test_heads_of_a_draft_that_is_whole_on_a_rank_are_not_divided(
    ranks: int | None, refused: bool
) -> None:
    target, draft = (
        ModelFacts(role, role, {}, {"num_attention_heads": count})
        for role, count in ((Role.TARGET, 8), (Role.DRAFT, 3))
    )
    speculation = SpeculationFacts("draft_model", 3, {"draft_tensor_parallel_size": ranks})
    engine = {"tensor_parallel_size": 2}
    facts = ServeFacts(engine, MkvConfig(), target, DEVICE, speculation, draft)
    found = [str(one) for one in heads(facts)]
    assert bool(found) is refused
    assert all("3 attention heads of the draft" in said for said in found)
