# SPDX-License-Identifier: Apache-2.0
"""Each rule refuses what it is for, and lets what is next to it pass."""

from __future__ import annotations

import pytest

from mkv_ascend.rules import graphs
from mkv_ascend.rules.facts import Facts
from mkv_ascend.rules.options import unknown_names
from mkv_ascend.rules.verdict import refusals
from tests.support.rule_cases import REFUSED, SERVED
from tests.support.rule_facts import MOE, NEW, OLD, facts, pair


def codes(found: Facts) -> list[str]:
    return [refusal.code for refusal in refusals(found)]


@pytest.mark.parametrize("name", SERVED)
def test_what_is_served_is_not_refused(name: str) -> None:
    assert refusals(SERVED[name]) == ()


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_served_is_refused_once_and_in_three_parts(name: str) -> None:
    code, found = REFUSED[name]
    assert codes(found) == [code]
    (refusal,) = refusals(found)
    assert all((refusal.asked, refusal.possible, refusal.change))
    assert not any(part.endswith(".") for part in (refusal.asked, refusal.possible, refusal.change))


def test_several_are_told_at_once() -> None:
    found = pair(tokens=16, cache_dtype="fp8", devices_needed=16)
    assert codes(found) == ["kv-cache-dtype", "devices", "tokens-per-step"]


def test_our_options_one_level_too_high_are_refused_on_each_host() -> None:
    for host in (OLD, NEW):
        (found,) = unknown_names({"attention": {"target": "mla"}}, host)
        assert found.code == "additional-config"
        assert found.change == 'write {"mkv_ascend": {"attention": ...}}'
        assert not list(unknown_names({"mkv_ascend": {}, "enable_flashcomm1": True}, host))
    (found,) = unknown_names({"enable_flashcom": True}, NEW)
    assert "enable_flashcom, which" in found.asked
    assert not list(unknown_names({"enable_flashcom": True}, OLD))


@pytest.mark.parametrize(
    ("found", "backends", "says"),
    [
        (pair(graph_mode="FULL_DECODE_ONLY"), {"fused_infer_attention": 4}, "captured"),
        (pair(), {}, "the target has no full graphs"),
        (pair(graph_mode="FULL", options={"enforce_eager": True}), {}, "enforce_eager"),
        (pair(graph_mode="FULL", tokens=15), {"mla": 1}, "a prefill to MLA"),
        (pair(graph_mode="FULL"), {"flash_attention_3": 1}, "launches of flash_attention_3"),
        (
            pair(MOE, target=MOE, graph_mode="FULL", data_parallel=2),
            {"mla": 1},
            "one with those of other ranks",
        ),
    ],
)
def test_how_a_draft_runs_is_told(found: Facts, backends: dict[str, int], says: str) -> None:
    assert says in (graphs.draft_graphs(found, backends) or "")
    assert graphs.draft_graphs(facts(), {}) is None
