# SPDX-License-Identifier: Apache-2.0
"""One rank of an engine counts, and the first of all says what is served."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mkv_ascend.adapters.common import start_up
from mkv_ascend.adapters.common.start_up import Served
from mkv_ascend.adapters.installed import rules

COST = SimpleNamespace(graphs=0, kept_bytes=0)


def config(ranks: int, stages: int, report: Path | None = None, engine: int = 1) -> Any:
    ours = {} if report is None else {"start_up_report": str(report)}
    return SimpleNamespace(
        additional_config={"mkv_ascend": ours},
        model_config=SimpleNamespace(served_model_name="m"),
        speculative_config=None,
        scheduler_config=SimpleNamespace(async_scheduling=True),
        parallel_config=SimpleNamespace(
            world_size=ranks * stages, pipeline_parallel_size=stages, data_parallel_index=engine
        ),
    )


@pytest.mark.parametrize(
    ("ranks", "stages", "counts"), [(1, 1, 0), (2, 1, 0), (4, 2, 4), (1, 3, 2)]
)
def test_one_rank_of_an_engine_counts_that_which_drafts(
    ranks: int, stages: int, counts: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    published: list[Any] = []
    assembly: Any = SimpleNamespace(
        publish_with=published.append, capturer=SimpleNamespace(cost=SimpleNamespace(total=COST))
    )
    monkeypatch.setattr(start_up, "is_global_first_rank", lambda: False)
    monkeypatch.setattr(start_up, "folder", lambda: tmp_path)
    monkeypatch.setattr(start_up, "publisher", lambda store, assembly: "publish")
    found = []
    for rank in range(ranks * stages):
        start_up.finish(rank, config(ranks, stages), Served((), assembly, None, None, None))
        if published:
            found.append(rank)
            published.clear()
    assert found == [counts]


@pytest.mark.parametrize(
    ("rank", "stages", "engine", "writes"),
    [(0, 1, 0, True), (0, 1, 1, False), (0, 2, 0, False), (1, 2, 0, True), (1, 2, 1, False)],
)
def test_the_last_stage_of_the_first_engine_writes_the_report(
    rank: int,
    stages: int,
    engine: int,
    writes: bool,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    report = tmp_path / "report.json"
    monkeypatch.setattr(start_up, "is_global_first_rank", lambda: rank == engine == 0)
    monkeypatch.setattr(start_up, "folder", lambda: None)
    nothing = Served((), None, None, None, None)
    start_up.finish(rank, config(1, stages, report, engine), nothing)
    assert report.exists() == writes
    if writes:
        assert json.loads(report.read_text())["draft"] is None
        assert json.loads(report.read_text())["async_scheduling"] is True


@pytest.mark.parametrize(
    ("method", "ahead", "unpadded", "stages", "executor", "may_be_said"),
    [
        ("draft_model", False, False, 1, "mp", True),
        ("draft_model", False, False, 1, "uni", True),
        ("draft_model", True, False, 1, "mp", False),
        ("draft_model", False, True, 1, "mp", False),
        ("draft_model", False, False, 2, "mp", False),
        ("draft_model", False, False, 1, "ray", False),
        ("eagle3", False, False, 1, "mp", False),
        (None, False, False, 1, "mp", False),
    ],
)
def test_steps_that_need_not_wait_are_told(
    method: str | None, ahead: bool, unpadded: bool, stages: int, executor: str, may_be_said: bool
) -> None:
    """On a host that schedules them ahead where it is asked to, and not by default."""
    speculative = SimpleNamespace(method=method, disable_padded_drafter_batch=unpadded)
    parallel = SimpleNamespace(pipeline_parallel_size=stages, distributed_executor_backend=executor)
    asked: Any = SimpleNamespace(
        speculative_config=None if method is None else speculative,
        scheduler_config=SimpleNamespace(async_scheduling=ahead),
        parallel_config=parallel,
    )
    by_host = "draft_model" in rules().in_turn_by_default
    assert bool(start_up.scheduling(asked)) == (may_be_said and by_host)


def test_a_worker_reports_once_it_is_warm(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[Any] = []
    worker: Any = SimpleNamespace(rank=3, vllm_config="config", served=lambda: "served")
    monkeypatch.setattr(start_up, "finish", lambda *given: done.append(given))

    def warm_up() -> str:
        done.append("warm")
        return "times"

    assert start_up.warm_up(worker, warm_up) == "times"
    assert done == ["warm", (3, "config", "served")]


def test_a_warm_up_that_fails_is_the_error_that_is_seen() -> None:
    def refuse() -> None:
        raise RuntimeError("out of memory")

    worker: Any = SimpleNamespace()  # one that has nothing to say yet
    with pytest.raises(RuntimeError, match="out of memory"):
        start_up.warm_up(worker, refuse)
