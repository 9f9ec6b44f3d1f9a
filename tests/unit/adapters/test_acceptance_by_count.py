# SPDX-License-Identifier: Apache-2.0
"""Acceptance by number of draft tokens adds up to what vLLM's own method counts."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.multiprocess import MultiProcessCollector
from vllm.v1.core.sched.scheduler import Scheduler

from mkv_ascend import metrics
from mkv_ascend.adapters.common.patches import acceptance_by_count
from mkv_ascend.drafting.counts import DraftWorth

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
