# SPDX-License-Identifier: Apache-2.0
"""Cells of the matrix as users have them by default: prefix hits and asynchronous scheduling."""

from __future__ import annotations

from pathlib import Path

import matrix_pages
import pytest

from benchmarks.matrix import prompts, rounded_models, running, table
from benchmarks.matrix.cells import find_cells
from benchmarks.matrix.judging import Assessment
from benchmarks.matrix.prompts import COMMON, MIXED, NEW_TOKENS, Workload
from benchmarks.matrix.running import GRAPH, GRAPH_V2, HITS, HITS_V2, OURS, STOCK, Verdict, scenario
from tests.support.engine import Result

LONGEST = 512
"""``max_model_len`` of cells."""


@pytest.fixture(autouse=True)
def _no_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is trained for names, and a token is a character."""
    monkeypatch.setattr(running, "model_directory", Path)
    monkeypatch.setattr(prompts.reference, "token_ids", lambda _, text: [0, *text.encode()])


@pytest.mark.parametrize("workload", [COMMON, rounded_models.COMMON])
def test_requests_share_whole_blocks_and_differ_behind_them(workload: Workload) -> None:
    requests = [workload.candidates(Path(), place)[0] for place in range(len(workload.lengths))]
    begin = requests[0][: workload.common]
    assert len(begin) == workload.common
    assert (workload.common - 1) % 128 == 0
    assert all(request[: workload.common] == begin for request in requests)
    lengths = [len(request) - workload.common for request in requests]
    assert lengths == list(workload.lengths)
    assert len({tuple(request[workload.common :]) for request in requests}) == len(requests)
    assert max(map(len, requests)) + NEW_TOKENS <= LONGEST


@pytest.mark.parametrize("workload", [MIXED, rounded_models.MIXED, rounded_models.TEXTS])
def test_other_requests_begin_at_once_with_what_is_their_own(workload: Workload) -> None:
    requests = [workload.candidates(Path(), place)[0] for place in range(len(workload.lengths))]
    assert [len(request) for request in requests] == list(workload.lengths)
    assert len({tuple(request[:6]) for request in requests}) > 1


def test_preemption_must_be_shown_by_requests_of_their_own() -> None:
    assert COMMON.not_shown(Result(tokens=[])) == []
    assert MIXED.not_shown(Result(tokens=[], preempted_contexts=[[1]])) == []
    assert MIXED.not_shown(Result(tokens=[], cached_tokens=[384])) == [
        "no request was preempted, so that preemption is not shown"
    ]


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


@pytest.mark.parametrize("side", [HITS, HITS_V2])
def test_it_is_scheduled_ahead_in_graphs_with_prefix_caching(side: str) -> None:
    drafting, looking_up = find_cells(["dense/dense", "dense/ngram"])
    for cell in (drafting, looking_up):
        asked = scenario(cell, [[1, 2]], side)
        assert asked.engine["enable_prefix_caching"] is True
        assert asked.graphs == running.GRAPH_MODE
        assert not asked.force_preemption
        assert ("async_scheduling" in asked.engine) == (cell is drafting)
    assert scenario(drafting, [[1, 2]], side).drafts_stay_in_workers


@pytest.mark.parametrize("side", [OURS, GRAPH, GRAPH_V2, STOCK])
def test_other_sides_stay_as_they_were(side: str) -> None:
    (cell,) = find_cells(["dense/dense"])
    asked = scenario(cell, [[1, 2]], side)
    assert asked.force_preemption
    assert asked.engine["max_num_batched_tokens"] == running.CHUNK
    assert not asked.engine.keys() & {"enable_prefix_caching", "async_scheduling"}


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


def test_it_has_a_column_on_each_host(monkeypatch: pytest.MonkeyPatch) -> None:
    (cell,) = find_cells(["dense/dense"])
    works, fails = Verdict("works", "", 1.5, 1.5), Verdict("fails", "other tokens")
    monkeypatch.setattr(table, "version", lambda _: table.FIRST_HOST)
    here = {(cell.name, side): works for side in (OURS, GRAPH, STOCK)} | {(cell.name, HITS): fails}
    matrix = table.as_json([cell], here)
    monkeypatch.setattr(table, "version", lambda _: "0.30.0rc2")
    matrix = table.as_json([cell], {(cell.name, HITS): works, (cell.name, HITS_V2): fails}, matrix)
    (row,) = matrix["cells"]
    assert (row["hits"], row["hosts"]["0.30.0rc2"]["hits"]) == ("fails", "works")
    assert row["hosts"]["0.30.0rc2 V2"]["hits"] == "fails"
    line = matrix_pages.details(matrix).splitlines()[-1]
    assert "| works | works | fails | 1.50 (1.50) | works |" in line
    assert "| not run, not run, works | not run, not run, fails |" in line
    assert "| with hits: other tokens |" in line
