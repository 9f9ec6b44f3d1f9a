# SPDX-License-Identifier: Apache-2.0
"""Pipeline stages: verify steps under way, embeddings, inputs; which rank ends where it fails."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from vllm.v1.outputs import DraftTokenIds
from vllm.v1.request import RequestStatus

from mkv_ascend.adapters.common import failed_ranks, pipeline
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


class Model(nn.Module):
    """A model whose class says that it has no embeddings of its own, as Llama's does."""

    has_own_embed_tokens = False

    def __init__(self, filled_with: float) -> None:
        super().__init__()
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(4, 2)
        nn.init.constant_(self.model.embed_tokens.weight, filled_with)


class LastOfTwo:
    """The group of pipeline ranks, on the last one: the first sends embeddings of sevens."""

    world_size = 2
    is_first_rank = False

    def broadcast_object(self, lacks: bool, src: int) -> bool:
        return lacks

    def broadcast_tensor_dict(self, sent: None, src: int) -> dict[str, torch.Tensor]:
        return {"embeddings": torch.full((4, 2), 7.0)}


@pytest.mark.parametrize(("method", "holds"), [("draft_model", 3.0), ("eagle", 7.0)])
def test_a_draft_model_keeps_its_own(
    monkeypatch: pytest.MonkeyPatch, method: str, holds: float
) -> None:
    """Whatever its class says: flags of a class are about heads."""
    monkeypatch.setattr(pipeline, "get_pp_group", LastOfTwo)
    target, draft = Model(5.0), Model(3.0)
    runner: Any = SimpleNamespace(
        vllm_config=SimpleNamespace(
            speculative_config=SimpleNamespace(method=method),
            parallel_config=SimpleNamespace(pipeline_parallel_size=2),
        ),
        get_model=lambda: target,
    )
    pipeline.share_embeddings(runner, SimpleNamespace(model=draft))
    assert draft.model.embed_tokens.weight.eq(holds).all()


def test_a_draft_has_all_layers_while_it_is_built_or_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """However VLLM_PP_LAYER_PARTITION shares the target's out."""
    monkeypatch.setenv("VLLM_PP_LAYER_PARTITION", "1,5")
    last: Any = SimpleNamespace(world_size=2, is_first_rank=False, is_last_rank=True)
    monkeypatch.setattr(pipeline.parallel_state, "_PP", last)
    stage_of = pipeline.distributed_utils.get_pp_indices
    with pipeline.whole():
        assert pipeline.distributed_utils.get_pp_indices(6, 1, 2) == (0, 6)
        group = pipeline.get_pp_group()
        assert (group.world_size, group.is_first_rank, group.is_last_rank) == (1, True, True)
    assert pipeline.distributed_utils.get_pp_indices is stage_of
    assert stage_of(6, 1, 2) == (1, 6)
    assert pipeline.get_pp_group() is last


@pytest.mark.parametrize("earlier", [True, False])
def test_a_stage_that_samples_nothing_waits_for_its_inputs(
    earlier: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the last one vLLM has no event without asynchronous scheduling, and needs none."""
    events = {"npu:1": SimpleNamespace(Event=lambda: "an event of the device")}
    monkeypatch.setattr(torch, "get_device_module", events.__getitem__)
    monkeypatch.setattr(pipeline, "is_first_stage", lambda config: earlier)
    runner: Any = SimpleNamespace(vllm_config=None, prepare_inputs_event=None, device="npu:1")
    pipeline.keep_inputs(runner)
    assert runner.prepare_inputs_event == ("an event of the device" if earlier else None)


def test_the_hosts_own_event_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "is_first_stage", lambda config: True)
    own = object()
    runner: Any = SimpleNamespace(vllm_config=None, prepare_inputs_event=own)
    pipeline.keep_inputs(runner)
    assert runner.prepare_inputs_event is own


def worker_of(rank, *, backend="mp", tensor=2, prefill=1, stages=1):
    parallel = SimpleNamespace(
        distributed_executor_backend=backend,
        tensor_parallel_size=tensor,
        prefill_context_parallel_size=prefill,
        world_size=tensor * prefill * stages,
    )
    return SimpleNamespace(rank=rank, parallel_config=parallel)


@pytest.mark.parametrize(
    ("worker", "starting", "ends"),
    [
        (worker_of(0), False, False),
        (worker_of(1), False, True),
        # The first rank of the last stage hands over the tokens; answers to a start are in order.
        (worker_of(2, stages=2), False, False),
        (worker_of(2, stages=2), True, True),
        (worker_of(0, stages=2), False, True),
        (worker_of(0, stages=2), True, False),
        (worker_of(1), True, True),
        # Ranks that share a prompt's tokens are of one stage.
        (worker_of(0, prefill=2), False, False),
        (worker_of(2, prefill=2), False, True),
        (worker_of(1, backend="ray"), True, False),
        (worker_of(1, backend="ray"), False, False),
    ],
)
def test_a_rank_ends_that_nobody_hears(worker, starting, ends, monkeypatch):
    monkeypatch.setattr(failed_ranks, "GRACE_SECONDS", 0.0)
    monkeypatch.setattr(failed_ranks.threading, "Thread", lambda **_: SimpleNamespace(start=int))
    expected = SystemExit if ends else MemoryError
    with pytest.raises(expected), failed_ranks.ending_unheard(worker, starting=starting):
        raise MemoryError
