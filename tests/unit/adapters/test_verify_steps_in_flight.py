# SPDX-License-Identifier: Apache-2.0
"""What the scheduler is told of verify steps under way, and which draft tokens it is given."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from vllm.v1.outputs import DraftTokenIds
from vllm.v1.request import RequestStatus

from mkv_ascend.adapters.common.judge.early_check import (
    must_go_step_by_step,
    serves_drafts_in_stages,
)
from mkv_ascend.adapters.common.pipeline import DRAFTS, hand_out, hold_back, release


def request(tokens: int, computed: int, **more: Any) -> SimpleNamespace:
    values = {"status": RequestStatus.RUNNING, "num_output_placeholders": 0, **more}
    return SimpleNamespace(num_tokens=tokens, num_computed_tokens=computed, **values)


def scheduler_of(**requests: SimpleNamespace) -> Any:
    given: dict[str, list[int]] = {}

    def take(drafts: DraftTokenIds) -> None:
        given.update(zip(drafts.req_ids, drafts.draft_token_ids, strict=True))

    return SimpleNamespace(requests=requests, update_draft_token_ids=take, given=given)


def scheduled(resumed: tuple[str, ...] = (), **drafts: list[int]) -> Any:
    cached = SimpleNamespace(resumed_req_ids=set(resumed))
    return SimpleNamespace(scheduled_cached_reqs=cached, scheduled_spec_decode_tokens=drafts)


def to_schedule(one: SimpleNamespace) -> int:
    """As vLLM's scheduler counts: drafts are given only later."""
    count: int = one.num_tokens + one.num_output_placeholders - one.num_computed_tokens
    return count


def test_a_request_of_a_verify_step_has_nothing_to_schedule() -> None:
    # 11 tokens, of which the last and 3 drafts run; and one whose prompt is under way in chunks.
    verifies, reads = request(11, 14), request(50, 20)
    scheduler, step = scheduler_of(a=verifies, b=reads), scheduled(a=[1, 2, 3])
    hold_back(scheduler, step)
    assert (to_schedule(verifies), to_schedule(reads)) == (0, 30)
    release(scheduler, step)
    assert verifies.num_output_placeholders == 0
    assert step.scheduled_spec_decode_tokens == {"a": [1, 2, 3]}


def test_a_request_resumed_meanwhile_is_not_taken_back() -> None:
    """Its rejected tokens are not among the tokens that were computed since."""
    one, step = request(11, 14), scheduled(a=[1, 2, 3])
    scheduler = scheduler_of(a=one)
    hold_back(scheduler, step)
    one.num_computed_tokens = 11  # preempted, resumed, and read again
    hold_back(scheduler, scheduled(resumed=("a",)))
    release(scheduler, step)
    assert step.scheduled_spec_decode_tokens == {}
    assert to_schedule(one) == 0


def test_a_finished_request_is_left_alone() -> None:
    step = scheduled(a=[1, 2, 3])
    release(scheduler_of(), step)
    assert step.scheduled_spec_decode_tokens == {"a": [1, 2, 3]}


@pytest.mark.parametrize(
    ("one", "newest"),
    [
        (request(12, 11), True),
        (request(12, 12), False),  # its prompt's last chunk is under way
        (request(12, 4), False),  # another chunk is
        (request(12, 11, status=RequestStatus.PREEMPTED), False),
    ],
)
def test_only_drafts_behind_the_newest_token_are_given(one: SimpleNamespace, newest: bool) -> None:
    scheduler = scheduler_of(a=one)
    output = SimpleNamespace(**{DRAFTS: DraftTokenIds(["a", "gone"], [[7, 8], [9, 9]])})
    hand_out(scheduler, output)
    assert scheduler.given == ({"a": [7, 8]} if newest else {})


def test_an_output_without_drafts_gives_none() -> None:
    scheduler = scheduler_of(a=request(12, 11))
    hand_out(scheduler, SimpleNamespace())
    assert scheduler.given == {}


@pytest.mark.parametrize(
    ("changed", "must"),
    [
        ({}, True),
        ({"async_scheduling": False}, False),
        ({"stages": 1}, False),
        ({"speculative_config": None}, False),
        ({"use_v2_model_runner": True}, False),
        ({"kv_transfer_config": SimpleNamespace(kv_role="kv_producer")}, False),
        ({"kv_transfer_config": SimpleNamespace(kv_role="kv_both")}, True),
    ],
)
def test_asynchronous_scheduling_is_switched_off_for_drafts_in_stages(
    changed: dict[str, Any], must: bool
) -> None:
    values = {
        "async_scheduling": True,
        "stages": 2,
        "speculative_config": "a draft",
        "use_v2_model_runner": False,
        "kv_transfer_config": None,
        **changed,
    }
    config: Any = SimpleNamespace(
        **values,
        parallel_config=SimpleNamespace(pipeline_parallel_size=values["stages"]),
        scheduler_config=SimpleNamespace(async_scheduling=values["async_scheduling"]),
    )
    assert must_go_step_by_step(config) == must
    several = changed == {"async_scheduling": False}
    assert serves_drafts_in_stages(config) == several
