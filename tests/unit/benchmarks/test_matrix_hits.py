# SPDX-License-Identifier: Apache-2.0
"""Cells of the matrix as users have them by default: prefix hits and asynchronous scheduling."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.matrix import prompts, running
from benchmarks.matrix.cells import find_cells
from benchmarks.matrix.judging import Assessment
from benchmarks.matrix.running import GRAPH, HITS, OURS
from tests.support.engine import Result


@pytest.fixture(autouse=True)
def _no_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is trained for names, and a token is a character."""
    monkeypatch.setattr(running, "model_directory", Path)
    monkeypatch.setattr(prompts.reference, "token_ids", lambda _, text: [0, *text.encode()])


class Agreeing:
    """A judge who finds no fault."""

    def requests(self) -> list[list[int]]:
        return []

    def assess(self, requests: object, result: object) -> Assessment:
        return Assessment([], 1.0)


@pytest.mark.parametrize(
    ("side", "cached", "outcome"),
    [(HITS, [0, 384], "works"), (HITS, [0, 0], "no hit"), (GRAPH, [0, 0], "works")],
)
def test_requests_without_a_hit_are_an_outcome_of_their_own(
    side: str, cached: list[int], outcome: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = Result(
        tokens=[],
        platform="mkv_ascend",
        cached_tokens=cached,
        asynchronous=side == HITS,
        target_replays=1,
        draft_replays=1,
    )
    monkeypatch.setattr(running, "judge_of", lambda cell, side: Agreeing())
    monkeypatch.setattr(running.engine, "run", lambda scenario, timeout: result)
    (cell,) = find_cells(["dense/dense"])
    assert running.run(cell, side).outcome == outcome


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("side", [OURS, HITS])
def test_an_engine_that_was_scheduled_otherwise_gives_no_verdict(
    side: str, asynchronous: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Nobody(Agreeing):
        def assess(self, requests: object, result: object) -> Assessment:
            raise AssertionError("judged")

    result = Result(tokens=[], platform="mkv_ascend", asynchronous=asynchronous)
    monkeypatch.setattr(running, "judge_of", lambda cell, side: Nobody())
    monkeypatch.setattr(running.engine, "run", lambda scenario, timeout: result)
    (cell,) = find_cells(["dense/dense"])
    wrong = asynchronous != (side == HITS)
    expected = (RuntimeError, "was not scheduled so") if wrong else (AssertionError, "judged")
    with pytest.raises(expected[0], match=expected[1]):
        running.run(cell, side)
