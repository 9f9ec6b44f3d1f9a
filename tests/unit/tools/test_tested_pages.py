# SPDX-License-Identifier: Apache-2.0
"""docs/tested.md: figures of single runs are added up, and each has a name that is shown."""

from __future__ import annotations

import json

import pytest

import tested_pages

RELEASES = json.loads(tested_pages.RELIABILITY.read_text(encoding="utf-8"))
ROWS = [row for release in RELEASES.values() for row in release["rows"]]
MORE = {"program", "host", "options", "runs", "problems", "note", "accepted", "sampled"}
MORE |= {"what", "as_on_stock", "statuses"}


def test_each_run_has_fields_that_are_known() -> None:
    assert len(ROWS) > 50
    known = MORE | set(tested_pages.AMOUNTS) | set(tested_pages.OUTCOMES)
    for row in ROWS:
        assert set(row) <= known, row
        assert {"program", "host", "problems"} <= set(row)
        assert not row["problems"] or row["note"], "a problem says what it was"


def test_drawn_engines_are_refused_right_or_problems() -> None:
    drawn = [row for row in ROWS if "drawn" in row and "right" in row]
    assert drawn
    for row in drawn:
        assert row["drawn"] == row["refused"] + row["right"] + row["problems"], row


def test_runs_of_one_program_on_one_host_are_added_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = [
        {"program": "load", "host": "a", "requests": 1000, "aborted": 2, "problems": 0},
        {"program": "load", "host": "a", "requests": 500, "runs": 2, "problems": 1, "note": "b"},
        {"program": "load", "host": "c", "requests": 7, "problems": 0, "note": "alone"},
    ]
    found = list(tested_pages._by_program(rows))
    assert found == [
        "| `load` | a | 3 runs, 1,500 requests | 2 aborted | 1 |",
        "| `load` | c | 1 run, 7 requests |  | 0 |",
    ]


def test_there_is_a_table_for_each_release() -> None:
    text = tested_pages.tables()
    assert [line for line in text.splitlines() if line.startswith("### ")] == [
        f"### {release}" for release in RELEASES
    ]
    assert "| vllm-ascend's tests | 0.23.0 | 26 folders, " in text
    assert "| [matrix](matrix.md) | 0.23.0 | 181 pairs of families | eagerly: " in text
