# SPDX-License-Identifier: Apache-2.0
"""The KV layout benchmark, without vLLM's part (tests/emulated has that)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.kv_layout import (
    NEAR_IDEAL,
    as_costs,
    as_requests,
    as_table,
    below,
    figures,
    published_figures,
    summary,
)
from benchmarks.models import load_pair, load_pair_of_pages
from benchmarks.published_pairs import PAIRS
from benchmarks.rows import REQUEST, ROWS, Row
from mkv_ascend.layout import grouping
from mkv_ascend.layout.search import search

RAISES = {"groups": None, "mib": None, "error": "NotImplementedError: no (file.py:1)"}


def test_published_pairs_are_rows_without_vllms_part() -> None:
    row = published_figures(PAIRS[0])
    assert row.keys() == figures(ROWS[4], RAISES).keys()
    assert (row["table"], row["vllm"]) == (None, None)
    assert PAIRS[0].name in as_table({"rows": [row]})


def test_the_summary_counts_pairs_by_default_and_in_shared_pages() -> None:
    rows = [figures(row, RAISES) for row in ROWS[:3]]
    shared = [row["shared"] for row in rows]
    assert [part["groups"] for part in shared] == [2, 5, 4]
    assert max(part["over_ideal"] for part in shared) <= 1.01
    assert all(0 < part["page_mib"] <= 256 for part in shared)
    found = summary(rows)
    assert (found["balanced"]["near_ideal"], found["balanced"]["groups"]) == (0, 26)
    assert (found["shared"]["near_ideal"], found["shared"]["groups"]) == (3, 11)
    assert found["balanced"]["worst"] == max(row["over_ideal"] for row in rows) > 1.13
    last = as_table({"rows": rows}).splitlines()[-1]
    assert last.startswith("shared: near_ideal 3, ")


def test_the_goal_is_the_better_of_both_figures() -> None:
    assert [(row.goal.groups, row.goal.mib) for row in ROWS[:3]] == [
        (3, 4260),
        (11, 3655),
        (12, 995),
    ]


OVER_IDEAL = (ROWS[0], ROWS[1], ROWS[2], ROWS[8], ROWS[10])


def test_only_five_rows_are_over_the_ideal_and_each_says_what_it_pays_for() -> None:
    rows = [figures(row, RAISES) for row in ROWS]
    assert [row["name"] for row in rows if row["over_ideal"] > NEAR_IDEAL] == [
        row.name for row in OVER_IDEAL
    ]
    for row in rows:
        assert row["exhaustive"]
        assert row["gap"] == 0
        over = row["balanced"]["mib"] - row["ideal_mib"]
        assert sum(row["cost_mib"].values()) == pytest.approx(over, abs=1)
        assert min(row["cost_mib"].values()) >= 0
    lines = as_costs({"rows": rows}).splitlines()
    assert len(lines) == 2 + len(OVER_IDEAL)
    assert lines[2] == (
        "| Llama-8B + gemma3-1b | 4240 | 3, 4656, 1.098 | 128 | 15, 4632, 1.092 | 29, 4257, 1.004 "
        "| 24 | 376 | 16 | 512: 2, 4274 |"
    )


@pytest.mark.parametrize("row", OVER_IDEAL, ids=lambda row: row.name)
def test_two_block_sizes_for_layers_that_are_alike_would_save_next_to_nothing(row: Row) -> None:
    """The search gives layers of one type blocks of one size: so the bound is nearly everyone's."""
    needs = load_pair(row.target, row.draft).needs()
    options = grouping.GroupingOptions()
    types = list(grouping._by_type(needs, options, REQUEST))
    least = search(tuple(types), REQUEST, options.node_limit).candidates[-1].held_bytes
    for index, kind in enumerate(types):
        for count in range(1, kind.count // 2 + 1):
            parts = [replace(kind, count=count), replace(kind, count=kind.count - count)]
            divided = (*types[:index], *parts, *types[index + 1 :])
            found = search(divided, REQUEST, options.node_limit)
            assert found.exhaustive
            assert found.candidates[-1].held_bytes > 0.997 * least


@pytest.mark.parametrize(
    ("requests", "equal_groups", "is_below"),
    [(10.0, None, False), (15.0, None, True), (7.0, 2, False), (7.5, 2, True), (14.0, 2, True)],
)
def test_rows_that_serve_fewer_requests_than_they_must_are_named(
    requests: float, equal_groups: int | None, is_below: bool
) -> None:
    """We serve 14.08 of this pair."""
    stock = {"groups": 15, "requests": requests, "equal_groups": equal_groups, "error": None}
    row = figures(ROWS[0], RAISES, stock)
    assert below(row) is is_below
    default, least = as_requests({"rows": [row]}).splitlines()[-2:]
    assert default.endswith(f", by default: {ROWS[0].name if is_below else 'none'}")
    # The least memory serves 15.4.
    assert below(row, "least_requests") is (requests * (equal_groups or 1) > 15.4)
    assert least.endswith(": none") is not below(row, "least_requests")


def test_pages_of_one_size_are_those_that_the_second_host_makes() -> None:
    """Figures of Platform._align_hybrid_block_size for states of 1072 KiB and keys of 1 KiB."""
    pair = load_pair_of_pages("Qwen3-Next-80B-A3B", "eagle3-2x128")
    assert {layer.block_size for layer in pair.layers} == {640}
    for layer, need in zip(pair.layers, pair.needs_of_pages(), strict=True):
        assert max(layer.page_bytes, layer.padded_page_bytes) == 640 * 2048
        assert need.is_packed
        assert need.page_bytes(640) == layer.page_bytes
    assert not any(need.is_packed for need in pair.needs())
    without = load_pair_of_pages("Llama-3.1-8B", "gemma-3-1b")
    assert without == load_pair("Llama-3.1-8B", "gemma-3-1b")
    assert without.needs_of_pages() == without.needs()
