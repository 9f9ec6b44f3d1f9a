# SPDX-License-Identifier: Apache-2.0
"""A scheduler whose draft is given up schedules no drafts, and steps under way keep theirs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from vllm.config import CUDAGraphMode

from mkv_ascend.adapters.common import giving_up
from mkv_ascend.adapters.common.patches import acceptance_by_count
from mkv_ascend.adapters.common.patches.acceptance_by_count import count_by_number
from mkv_ascend.drafting.counts import DraftWorth, Worthless

K = 3
FOUND = Worthless(proposals=5, tokens=15, accepted=3)


class Scheduler:
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


def under_way(scheduler: Scheduler) -> list[int]:
    """The draft tokens of a step, which are the very list of its request."""
    found: list[int] = scheduler.requests["a"].spec_token_ids
    return found


def test_requests_verify_nothing_and_a_step_under_way_keeps_its_drafts() -> None:
    scheduler = Scheduler()
    scheduled = under_way(scheduler)
    acceptance_by_count.give_up(scheduler, FOUND, 0.5)
    assert [request.spec_token_ids for request in scheduler.requests.values()] == [[], []]
    assert scheduler._spec_token_placeholders == []
    assert scheduled == [-1] * K
    assert not hasattr(scheduler, "dynamic_sd_lookup")


def test_vllm_0_30_drafts_nothing_for_any_number_of_requests() -> None:
    scheduler: Any = Scheduler()
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
    scheduler = Scheduler(mode)
    acceptance_by_count.give_up(scheduler, FOUND, 0.5)
    assert under_way(scheduler) == ([-1] * K if kept else [])
    assert giving_up.drops_drafts(scheduler) is not kept


def test_draft_tokens_are_taken_until_the_draft_is_given_up() -> None:
    scheduler, drafts = Scheduler(), object()
    assert call("update_draft_token_ids", scheduler, drafts) == [(drafts,)]
    acceptance_by_count.give_up(scheduler, FOUND, 0.5)
    assert call("update_draft_token_ids", scheduler, drafts) == []


def test_each_step_tells_its_workers() -> None:
    scheduler = Scheduler()
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
    scheduler, other = Scheduler(), Scheduler()
    for proposal in range(1, 12):
        # One of three is less than half.
        call("make_spec_decoding_stats", scheduler, None, K, 1, None, "a")
        assert giving_up.is_given_up(scheduler) == (proposal >= 5)
    assert not giving_up.is_given_up(other)
    (text,) = said
    assert "of its last 5 proposals (15 draft tokens) the target took 5 tokens, 33.3 %" in text
    assert "give_up_below is 50.0 %" in text
