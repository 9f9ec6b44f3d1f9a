# SPDX-License-Identifier: Apache-2.0
"""The KV layout benchmark, without vLLM's part (tests/emulated has that)."""

from __future__ import annotations

import pytest

from benchmarks.kv_layout import (
    as_requests,
    as_table,
    below,
    figures,
    published_figures,
    summary,
)
from benchmarks.models import load_pair, load_pair_of_pages
from benchmarks.published_pairs import PAIRS
from benchmarks.rows import ROWS, Row
from mkv_ascend.layout.kind import Role

RAISES = {"groups": None, "mib": None, "error": "NotImplementedError: no (file.py:1)"}


def test_published_pairs_are_rows_without_vllms_part() -> None:
    row = published_figures(PAIRS[0])
    assert row.keys() == figures(ROWS[4], RAISES).keys()
    assert (row["table"], row["vllm"]) == (None, None)
    assert PAIRS[0].name in as_table({"rows": [row]})


def test_the_summary_counts_rows_in_each_way_of_planning() -> None:
    rows = [figures(row, RAISES) for row in ROWS[:3]]
    shared = [row["shared"] for row in rows]
    assert [part["groups"] for part in shared] == [2, 5, 4]
    assert max(part["over_ideal"] for part in shared) <= 1.01
    assert all(0 < part["page_mib"] <= 256 for part in shared)
    found = summary(rows)
    assert found.keys() == {"shared", "one_block"}  # no layers that take strides
    assert (found["shared"]["near_ideal"], found["shared"]["groups"]) == (3, 11)
    assert found["one_block"]["worst"] == max(row["one_block"]["over_ideal"] for row in rows) > 1.1
    last = as_table({"rows": rows}).splitlines()[-2]
    assert last.startswith("shared: rows 3, near_ideal 3, ")


every_row = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)


@every_row
def test_neither_groups_nor_memory_are_more_than_folding_gives(row: Row) -> None:
    found = figures(row, RAISES)
    assert found["ideal_mib"] == row.ideal_mib
    assert found["shared"]["groups"] <= row.goal.groups
    assert found["shared"]["mib"] <= row.goal.mib
    target = [one for one in load_pair(row.target, row.draft).needs() if one.role is Role.TARGET]
    assert found["shared"]["prefix_hit_tokens"] == max(x.block_size for x in target if x.row_bytes)


def test_rows_of_layers_that_take_strides_are_near_the_ideal() -> None:
    found = [figures(row, RAISES)["strided"] for row in ROWS]
    over = [part["over_ideal"] for part in found if part is not None]
    assert len(over) == 8
    assert max(over) < 1.01


def test_the_goal_is_the_better_of_both_figures() -> None:
    assert [(row.goal.groups, row.goal.mib) for row in ROWS[:3]] == [
        (3, 4260),
        (11, 3655),
        (12, 995),
    ]


@pytest.mark.parametrize(
    ("requests", "equal_groups", "is_below"),
    [(10.0, None, False), (16.0, None, True), (7.0, 2, False), (8.0, 2, True), (16.0, 2, True)],
)
def test_rows_that_serve_fewer_requests_than_they_must_are_named(
    requests: float, equal_groups: int | None, is_below: bool
) -> None:
    """We serve 15.4 of this pair."""
    stock = {"groups": 15, "requests": requests, "equal_groups": equal_groups, "error": None}
    row = figures(ROWS[0], RAISES, stock)
    assert below(row) is is_below
    last = as_requests({"rows": [row]}).splitlines()[-1]
    assert last.endswith(f"must be: {ROWS[0].name if is_below else 'none'}")


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
