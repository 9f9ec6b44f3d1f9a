# SPDX-License-Identifier: Apache-2.0
"""Acceptance by number of draft tokens, and a scheduler whose draft is given up."""

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.multiprocess import MultiProcessCollector
from vllm.config import CUDAGraphMode
from vllm.v1.core.sched.scheduler import Scheduler

from mkv_ascend import metrics
from mkv_ascend.adapters.common import giving_up
from mkv_ascend.adapters.common.patches import acceptance_by_count
from mkv_ascend.adapters.common.patches.acceptance_by_count import count_by_number
from mkv_ascend.drafting.counts import DraftWorth, Worthless

STEPS = ((3, 2, None), (3, 2, {"r": 1}), (1, 0, None), (3, 3, {"s": 2}), (0, 0, None), (3, 0, None))
"""Scheduled draft tokens, accepted ones, and how many a grammar forbids by request."""


class CountingScheduler:
    """What vLLM's method reads of its scheduler."""

    num_spec_tokens = 3

    def __init__(self, log_stats: bool, vllm_config: Any) -> None:
        self.log_stats, self.vllm_config = log_stats, vllm_config


def counted(
    folder: Path, log_stats: bool, method: str = "eagle3", below: float | None = None
) -> tuple[Any, dict[str, Counter[tuple[str, ...]]]]:
    """vLLM's count of the steps, and ours by name and labels."""
    count = next(iter(acceptance_by_count.count_by_number.functions.values()))
    config = SimpleNamespace(
        additional_config={"mkv_ascend": {"drafting": {"give_up_below": below}}},
        model_config=SimpleNamespace(served_model_name="m"),
        parallel_config=SimpleNamespace(data_parallel_index=0),
        speculative_config=SimpleNamespace(method=method),
    )
    scheduler = CountingScheduler(log_stats, config)
    stats = None
    for number, accepted, invalid in STEPS:
        original = Scheduler.make_spec_decoding_stats
        stats = count(original, scheduler, stats, number, accepted, invalid, "r") or stats
    found: dict[str, Counter[tuple[str, ...]]] = {}
    for family in MultiProcessCollector(CollectorRegistry(), str(folder)).collect():
        for sample in family.samples:
            labels = tuple(
                sample.labels[name] for name in ("k", "position") if name in sample.labels
            )
            found.setdefault(sample.name, Counter())[labels] += int(sample.value)
    return stats, found


@pytest.fixture(autouse=True)
def _new_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    acceptance_by_count._acceptance.cache_clear()
    acceptance_by_count._worth.cache_clear()
    monkeypatch.setattr(acceptance_by_count, "folder", lambda: tmp_path)


def test_numbers_are_apart_and_their_sums_are_vllms(tmp_path: Path) -> None:
    theirs, found = counted(tmp_path, log_stats=True)
    verified, accepted = found[metrics.VERIFIED.name], found[metrics.ACCEPTED.name]
    assert verified == {("3",): 3, ("2",): 1, ("1",): 1}
    assert sum(verified.values()) == theirs.num_drafts
    assert sum(int(k) * times for (k,), times in verified.items()) == theirs.num_draft_tokens
    by_position: Counter[int] = Counter()
    for (_, position), times in accepted.items():
        by_position[int(position)] += times
    assert [by_position[position] for position in range(3)] == theirs.num_accepted_tokens_per_pos
    assert accepted["2", "1"] == 1


def test_a_worthless_draft_is_named_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(
        acceptance_by_count.logger, "warning", lambda text, *values: said.append(text % values)
    )
    # Six of its sixteen tokens are accepted in each round of STEPS.
    monkeypatch.setattr(acceptance_by_count, "DraftWorth", lambda: DraftWorth(5, 0.9))
    for _ in range(3):
        counted(tmp_path, log_stats=True, method="ngram")
    assert said == []
    for _ in range(3):
        counted(tmp_path, log_stats=True)
    (text,) = said
    assert "its last 5 proposals" in text


def test_a_metric_tells_whether_the_draft_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, found = counted(tmp_path, log_stats=True)
    assert found[metrics.DRAFT_GIVEN_UP.name] == {(): 0}
    monkeypatch.setattr(acceptance_by_count, "DraftWorth", lambda least: DraftWorth(5, least))
    monkeypatch.setattr(acceptance_by_count.giving_up, "keeps_rows", lambda scheduler: True)
    _, found = counted(tmp_path, log_stats=True, below=0.9)
    assert found[metrics.DRAFT_GIVEN_UP.name] == {(): 1}


def test_where_vllm_counts_nothing_neither_do_we(tmp_path: Path) -> None:
    """``--disable-log-stats``."""
    assert counted(tmp_path, log_stats=False) == (None, {})


K = 3
FOUND = Worthless(proposals=5, tokens=15, accepted=3)


class AsyncScheduler:
    """What is read and written of vLLM's scheduler with asynchronous scheduling."""

    log_stats = False

    def __init__(self, mode: CUDAGraphMode = CUDAGraphMode.FULL_AND_PIECEWISE) -> None:
        self._spec_token_placeholders = [-1] * K
        self.requests = {
            name: SimpleNamespace(spec_token_ids=self._spec_token_placeholders) for name in "ab"
        }
        self.vllm_config = SimpleNamespace(
            additional_config={"mkv_ascend": {"drafting": {"give_up_below": 0.5}}},
            compilation_config=SimpleNamespace(cudagraph_mode=mode),
            model_config=SimpleNamespace(served_model_name="m"),
            parallel_config=SimpleNamespace(data_parallel_index=0),
            scheduler_config=SimpleNamespace(max_num_seqs=4),
            speculative_config=SimpleNamespace(method="draft_model"),
        )


def call(name: str, scheduler: Any, *args: Any) -> list[Any]:
    """Call our function in place of vLLM's method; what was handed on to that one."""
    handed_on: list[Any] = []
    (function,) = (f for target, f in count_by_number.functions.items() if target.endswith(name))
    function(lambda *given: handed_on.append(given[1:]), scheduler, *args)
    return handed_on


def under_way(scheduler: AsyncScheduler) -> list[int]:
    """The draft tokens of a step, which are the very list of its request."""
    found: list[int] = scheduler.requests["a"].spec_token_ids
    return found


def test_requests_verify_nothing_and_a_step_under_way_keeps_its_drafts() -> None:
    scheduler = AsyncScheduler()
    scheduled = under_way(scheduler)
    acceptance_by_count.give_up(scheduler, FOUND, 0.5)
    assert [request.spec_token_ids for request in scheduler.requests.values()] == [[], []]
    assert scheduler._spec_token_placeholders == []
    assert scheduled == [-1] * K
    assert not hasattr(scheduler, "dynamic_sd_lookup")


def test_vllm_0_30_drafts_nothing_for_any_number_of_requests() -> None:
    scheduler: Any = AsyncScheduler()
    scheduler.dynamic_sd_lookup = None
    acceptance_by_count.give_up(scheduler, FOUND, 0.5)
    assert scheduler.dynamic_sd_lookup == [0] * 5


@pytest.mark.parametrize(
    ("mode", "kept"),
    [
        (CUDAGraphMode.NONE, False),
        (CUDAGraphMode.PIECEWISE, False),
        (CUDAGraphMode.FULL_AND_PIECEWISE, False),
        (CUDAGraphMode.FULL, False),
        (CUDAGraphMode.FULL_DECODE_ONLY, True),
    ],
)
def test_rows_are_kept_where_only_verify_steps_have_graphs(mode: CUDAGraphMode, kept: bool) -> None:
    scheduler = AsyncScheduler(mode)
    acceptance_by_count.give_up(scheduler, FOUND, 0.5)
    assert under_way(scheduler) == ([-1] * K if kept else [])
    assert giving_up.drops_drafts(scheduler) is not kept


def test_draft_tokens_are_taken_until_the_draft_is_given_up() -> None:
    scheduler, drafts = AsyncScheduler(), object()
    assert call("update_draft_token_ids", scheduler, drafts) == [(drafts,)]
    acceptance_by_count.give_up(scheduler, FOUND, 0.5)
    assert call("update_draft_token_ids", scheduler, drafts) == []


def test_each_step_tells_its_workers() -> None:
    scheduler = AsyncScheduler()
    told = []
    worker = SimpleNamespace(give_up=lambda: told.append(True))
    for given_up in (False, True):
        step = SimpleNamespace()
        if given_up:
            acceptance_by_count.give_up(scheduler, FOUND, 0.5)
        assert call("_update_after_schedule", scheduler, step) == [(step,)]
        giving_up.obey(worker, step)
        assert len(told) == given_up
        giving_up.obey(None, step)  # vllm-ascend's own proposals


def test_a_scheduler_judges_alone_and_says_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    acceptance_by_count._worth.cache_clear()
    acceptance_by_count._worth_going_on.cache_clear()
    monkeypatch.setattr(
        acceptance_by_count, "DraftWorth", lambda **options: DraftWorth(5, **options)
    )
    said: list[str] = []
    monkeypatch.setattr(
        giving_up.logger, "warning", lambda text, *values: said.append(text % values)
    )
    scheduler, other = AsyncScheduler(), AsyncScheduler()
    for proposal in range(1, 12):
        # One of three is less than half.
        call("make_spec_decoding_stats", scheduler, None, K, 1, None, "a")
        assert giving_up.is_given_up(scheduler) == (proposal >= 5)
    assert not giving_up.is_given_up(other)
    (text,) = said
    assert "of its last 5 proposals (15 draft tokens) the target took 5 tokens, 33.3 %" in text
    assert "give_up_below is 50.0 %" in text
