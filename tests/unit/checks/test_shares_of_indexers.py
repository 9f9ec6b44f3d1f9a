# SPDX-License-Identifier: Apache-2.0
"""Whose proposals draft beside an indexer, where ranks share sequences."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mkv_ascend.checks.about_draft_options import host_keeps_shares
from mkv_ascend.checks.facts import ServeFacts, SpeculationFacts
from mkv_ascend.checks.model import ModelFacts
from mkv_ascend.config import MkvConfig
from mkv_ascend.layout.kind import Role
from tests.support.host_checks import DEVICE, EQUAL_PAGES, SHARED

SPARSE, DENSE = {"index_topk": 2048}, {"num_attention_heads": 8}
SHARES = {"decode_context_parallel_size": 2}
SPLIT = {**SHARES, "additional_config": {"enable_dsa_cp": True}}


def facts(target: dict[str, Any], draft: dict[str, Any], method: str, **engine: Any) -> ServeFacts:
    models = [
        ModelFacts(role, role, values, values)
        for role, values in ((Role.TARGET, target), (Role.DRAFT, draft))
    ]
    speculation = SpeculationFacts(method, 3, {})
    return ServeFacts(engine, MkvConfig(), models[0], DEVICE, speculation, models[1])


@pytest.mark.parametrize(
    ("draft", "method", "rules", "engine", "keeps"),
    [
        (SPARSE, "mtp", EQUAL_PAGES, SHARES, False),
        (SPARSE, "mtp", EQUAL_PAGES, SPLIT, True),
        (SPARSE, "mtp", SHARED, SHARES, True),
        (SPARSE, "draft_model", EQUAL_PAGES, SHARES, True),
        (DENSE, "draft_model", EQUAL_PAGES, SHARES, False),
        (SPARSE, "mtp", SHARED, {}, False),
        (DENSE, "draft_model", EQUAL_PAGES, {"prefill_context_parallel_size": 2}, True),
    ],
)
def test_the_host_drafts_beside_an_indexer_that_is_not_planned(
    draft: dict[str, Any], method: str, rules: Any, engine: dict[str, Any], keeps: bool
) -> None:
    """Ours lays out the keys of heads of a sparse target alone, of which each rank keeps all."""
    given = replace(facts(SPARSE, draft, method, **engine), rules=rules)
    assert host_keeps_shares(given) is keeps
    if not keeps and method == "mtp" and engine:
        assert host_keeps_shares(replace(given, target=replace(given.target, text=DENSE)))
