# SPDX-License-Identifier: Apache-2.0
"""Verdicts of classes of models, from engines that are stand-ins."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.matrix.running import FAILS, WORKS
from reliability import __main__ as program
from reliability import classes
from reliability.classes import Verdict


@pytest.fixture
def verdicts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Classes that were run; ``Broken`` fails as a draft."""
    ran: list[str] = []

    def run(architecture: str, role: str, *_: object) -> Verdict:
        ran.append(f"{architecture} {role}")
        bad = architecture == "Broken" and role != "target"
        return Verdict(architecture, role, FAILS if bad else WORKS)

    monkeypatch.setattr(classes, "registered", lambda: {"Fine": "fine", "Broken": "broken"})
    monkeypatch.setattr(classes, "write_random_model", lambda *_: None)
    monkeypatch.setattr(classes, "judged", run)
    return ran


def test_a_class_that_fails_is_tried_in_each_role(
    verdicts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert program.main(["classes", "--json"]) == 1
    assert verdicts == ["Fine both", "Broken both", "Broken target", "Broken draft"]
    found = json.loads(capsys.readouterr().out)
    results = [(one["architecture"], one["role"], one["result"]) for one in found]
    assert results == [
        ("Fine", "both", WORKS),
        ("Broken", "target", WORKS),
        ("Broken", "draft", FAILS),
    ]


def test_what_was_kept_is_not_run_again(verdicts: list[str], tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    assert program.main(["classes", "--only", "Fine", "--keep", str(kept)]) == 0
    assert program.main(["classes", "--keep", str(kept)]) == 1
    assert verdicts == ["Fine both", "Broken both", "Broken target", "Broken draft"]
    assert len(kept.read_text().splitlines()) == 3
