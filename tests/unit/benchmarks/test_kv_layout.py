# SPDX-License-Identifier: Apache-2.0
"""The KV layout benchmark, without vLLM's part (tests/emulated has that)."""

from __future__ import annotations

from benchmarks.kv_layout import as_table, figures, published_figures
from benchmarks.published_pairs import PAIRS
from benchmarks.rows import ROWS

RAISES = {"groups": None, "mib": None, "error": "NotImplementedError: no (file.py:1)"}


def test_rows_have_the_format_that_readers_rely_on() -> None:
    names = [row.name for row in ROWS]
    assert len(names) == len(set(names)) == 19
    row = figures(ROWS[4], RAISES)
    assert list(row)[:3] == ["name", "table", "vllm"]
    assert row["table"] == {"groups": 4, "mib": 2340}
    assert row["vllm"] == RAISES
    assert {"ideal_mib", "bound_mib", "gap", "plan_ms", "exhaustive"} < row.keys()
    for objective in ("balanced", "fewest_groups", "least_memory"):
        assert list(row[objective])[:2] == ["groups", "mib"]
        assert row[objective]["mib"] >= row["ideal_mib"]


def test_published_pairs_are_rows_without_vllms_part() -> None:
    row = published_figures(PAIRS[0])
    assert row.keys() == figures(ROWS[4], RAISES).keys()
    assert (row["table"], row["vllm"]) == (None, None)
    assert PAIRS[0].name in as_table({"rows": [row]})


def test_the_goal_is_the_better_of_both_figures() -> None:
    assert [(row.goal.groups, row.goal.mib) for row in ROWS[:3]] == [
        (3, 4260),
        (11, 3655),
        (12, 995),
    ]


def test_the_table_has_a_line_for_each_row_and_each_error() -> None:
    stock = {"groups": 15, "mib": 4260, "error": None}
    result = {"rows": [figures(ROWS[0], stock), figures(ROWS[4], RAISES)]}
    table = as_table(result)
    assert "Llama-8B + gemma3-1b" in table
    assert "15, 4260" in table
    assert table.splitlines()[-1] == "vLLM raises NotImplementedError: no (file.py:1)"
