# SPDX-License-Identifier: Apache-2.0
"""The table of text classes: every family in both roles, and reasons of one line."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

import class_pages
from reliability import class_table, pairs


def test_each_family_is_a_target_and_a_draft_beside_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pairs, "families", lambda: ["a", "b"])
    asked = argparse.Namespace(each=True, first=1, count=10, seed=1)
    drawn = [(number, one.target, one.draft) for number, one in pairs._numbered(asked)]
    assert drawn == [(1, "llama", "a"), (2, "b", "llama"), (3, "llama", "b")]
    some = argparse.Namespace(each=False, first=5, count=2)
    assert [number for number, _ in pairs._numbered(some)] == [5, 6]


def test_a_table_keeps_other_hosts_and_one_line_of_a_reason(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    refused = "x, for 2 reasons: [draft-states], [family]"
    several = "target: answer 0 is wrong; target: answer 1 is wrong"
    class_table.keep(path, "one", [("a", "target", "works", "")])
    class_table.keep(
        path,
        "two",
        [
            ("a", "target", "refused", refused),
            ("a", "draft", "host", several),
            (
                "b",
                "draft",
                "not judged",
                "no model, the last: b has no tiny form here: KeyError('k')",
            ),
        ],
    )
    table = json.loads(path.read_text(encoding="utf-8"))
    assert table["one"] == {"a": {"target": {"result": "works", "reason": ""}}}
    assert table["two"]["a"]["target"]["reason"] == "draft-states, family"
    assert table["two"]["a"]["draft"]["reason"] == "target: answer 0 is wrong"
    assert table["two"]["b"]["draft"]["reason"] == "KeyError('k')"


def test_the_page_has_each_verdict_and_links_what_refusals_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "table.json"
    class_table.keep(
        path, "one", [("a", "target", "refused", "[family] x"), ("a", "draft", "works", "")]
    )
    class_table.keep(path, "two", [("b", "draft", "host", "a | b")])
    monkeypatch.setattr(class_pages, "PATH", path)
    page = class_pages.tables()
    assert "| a | refused | works |  |  |" in page
    assert "| b |  |  |  | host |" in page
    assert "| refused | [family](refusals.md#family) | one, target: a |" in page
    assert "| host | `a \\| b` | two, draft: b |" in page
