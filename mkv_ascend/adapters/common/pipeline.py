# SPDX-License-Identifier: Apache-2.0
"""Drafts under pipeline parallelism: the draft is whole, on the last stage."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from vllm.distributed import parallel_state
from vllm.distributed import utils as distributed_utils
from vllm.distributed.parallel_state import get_pp_group
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import RequestStatus

from mkv_ascend.adapters.common.drafting.target_parts import embeddings_of
from mkv_ascend.adapters.common.judge.early_check import serves_drafts_in_stages
from mkv_ascend.adapters.logging import get_logger
from mkv_ascend.adapters.patching import record, replaced
from mkv_ascend.drafting.stages import accepted_since

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.outputs import DraftTokenIds


# * A model asks vLLM's group of pipeline ranks which of its layers it has. While the draft is built
#   and run, that group is one stage (``whole``).
# * First stages append the sampled token alone, not the accepted drafts before it. They are told
#   all tokens of a request beside that, so that they can (``catch_up``).
# * Draft tokens go to the scheduler with the output of their step (``with_drafts``), because by the
#   time that vLLM asks for them another batch has run.

logger = get_logger(__name__)
DRAFTS = "mkv_ascend_drafts"
"""Attribute of a step's output: its draft tokens (``DraftTokenIds``)."""

ONE_STAGE = record(
    name="the draft is whole on the last pipeline stage",
    target=("vllm.distributed.parallel_state:_PP", "vllm.distributed.utils:get_pp_indices"),
)

DRAFTS_WITH_OUTPUT = record(
    name="a last stage's output has the step's draft tokens",
    target=(
        "vllm_ascend.worker.model_runner_v1:NPUModelRunner.sample_tokens",
        "vllm.v1.worker.gpu_model_runner:GPUModelRunner._update_states",
    ),
    reads=(
        "vllm.v1.worker.gpu_model_runner:GPUModelRunner.synchronize_input_prep",
        "vllm.v1.worker.gpu_model_runner:GPUModelRunner.take_draft_token_ids",
    ),
)


class OneStage:
    """A pipeline of one rank, as models ask for it."""

    world_size = 1
    rank_in_group = 0
    is_first_rank = True
    is_last_rank = True


@contextlib.contextmanager
def whole() -> Iterator[None]:
    """Let models that are built or run in the block have all their layers on this rank."""
    if parallel_state._PP is None or get_pp_group().world_size == 1:
        yield
        return
    with (
        replaced(parallel_state, "_PP", OneStage()),
        replaced(distributed_utils, "get_pp_indices", all_layers),
    ):
        yield


def all_layers(num_hidden_layers: int, _rank: int, _stages: int) -> tuple[int, int]:
    """The first layer of a stage that has all, and the one behind its last."""
    return 0, num_hidden_layers


def with_drafts(runner: Any, output: Any) -> Any:
    """The output of a step of the last stage, with the step's draft tokens."""
    if serves_drafts_in_stages(runner.vllm_config) and isinstance(output, ModelRunnerOutput):
        drafts: DraftTokenIds | None = runner.take_draft_token_ids()
        if drafts is not None:
            setattr(output, DRAFTS, drafts)
    return output


def share_embeddings(runner: Any, proposer: Any) -> None:
    """Give a head without embeddings those of the target, which are on the first stage.

    All stages call it once both models are loaded. vllm-ascend leaves such a head with whatever its
    memory holds, and vLLM's model runner V2 refuses it. ``proposer``: what has the draft; None on
    first stages. A draft model always has its own, also where its class says that it has none:
    classes that could hand states to a head say so, Llama's among them.
    """
    config = runner.vllm_config
    if config.speculative_config is None or config.parallel_config.pipeline_parallel_size == 1:
        return
    if config.speculative_config.method == "draft_model":
        return
    group = get_pp_group()
    head = getattr(proposer, "model", None)
    lacks = getattr(head, "has_own_embed_tokens", True) is False and not _has(runner, head)
    if not group.broadcast_object(lacks, src=group.world_size - 1):
        return
    sent = {"embeddings": embeddings_of(runner.get_model()).weight} if group.is_first_rank else None
    received = group.broadcast_tensor_dict(sent, src=0)
    if head is not None:
        head.model.embed_tokens.weight.data.copy_(received["embeddings"])
        logger.info(
            "The draft has no embeddings of its own: the last stage holds a copy of the target's."
        )


def _has(runner: Any, head: Any) -> bool:
    """Whether a head shares the target's embeddings, of which some classes have a second copy."""
    return head.model.embed_tokens is embeddings_of(runner.get_model())


def is_first_stage(config: VllmConfig) -> bool:
    """Whether this is a stage before the last, of a target with drafts."""
    return serves_drafts_in_stages(config) and not get_pp_group().is_last_rank


def keep_inputs(runner: Any) -> None:
    """Let a first stage wait until its last step's inputs are on the device before it writes new.

    The last stage waits in each step, because it samples. vLLM has this wait for asynchronous
    scheduling alone, which is off where drafts are served in stages.
    """
    if is_first_stage(runner.vllm_config) and runner.prepare_inputs_event is None:
        runner.prepare_inputs_event = torch.get_device_module(runner.device).Event()


def catch_up(runner: Any, scheduled: Any) -> None:
    """Let a first stage know the tokens accepted since, before it takes the next step's.

    ``scheduled``: the ``SchedulerOutput``. It has all tokens of each request that was not in the
    step before, and such a request has left the stage's batch. None with a verify step was: the
    engine schedules another batch, or an empty one, before it takes a step's output in.
    """
    cached = scheduled.scheduled_cached_reqs
    for request_id, computed in zip(cached.req_ids, cached.num_computed_tokens, strict=True):
        request, tokens = runner.requests[request_id], cached.all_token_ids.get(request_id)
        request.output_token_ids.extend(accepted_since(request.num_tokens, computed, tokens))


# What the scheduler must know of verify steps that run while it schedules the next batch.
#
# In a pipeline the engine fills a queue of batches before it waits for the first one's output. A
# request whose verify step runs has more computed tokens than tokens. vLLM would schedule it
# again, for less than no tokens. It also asks for draft tokens before it knows the token that
# they follow.
#
# Each host has a record of its own for these functions.


def hold_back(scheduler: Any, scheduled: Any) -> None:
    """Count the drafts of each verify step that begins as tokens to come: none is left to schedule.

    ``scheduled``: the step's ``SchedulerOutput``, whose tokens already count as computed.
    """
    for request_id in scheduled.scheduled_cached_reqs.resumed_req_ids:
        # Preempted while a verify step of it ran.
        scheduler.requests[request_id].num_output_placeholders = 0
    for request_id in scheduled.scheduled_spec_decode_tokens:
        request = scheduler.requests[request_id]
        request.num_output_placeholders = request.num_computed_tokens - request.num_tokens


def release(scheduler: Any, scheduled: Any) -> None:
    """Undo ``hold_back``, before the output of ``scheduled`` is taken in."""
    verified = scheduled.scheduled_spec_decode_tokens
    for request_id in list(verified):
        request = scheduler.requests.get(request_id)
        if request is None:
            continue
        if request.num_output_placeholders == 0:
            # Resumed in between: rejected tokens are not among those computed since.
            del verified[request_id]
        request.num_output_placeholders = 0


def hand_out(scheduler: Any, output: Any) -> None:
    """Give the scheduler the draft tokens that came with a step's output, where they are newest.

    A chunk of a prompt may have run before the one that is under way; its drafts are void.
    """
    drafts: DraftTokenIds | None = getattr(output, DRAFTS, None)
    if drafts is None:
        return
    pairs = [
        (request_id, tokens)
        for request_id, tokens in zip(drafts.req_ids, drafts.draft_token_ids, strict=True)
        if _follow_its_newest_token(scheduler.requests.get(request_id))
    ]
    newest = type(drafts)([name for name, _ in pairs], [tokens for _, tokens in pairs])
    scheduler.update_draft_token_ids(newest)


def _follow_its_newest_token(request: Any) -> bool:
    """Whether a request runs, and nothing of it is under way."""
    return (
        request is not None
        and request.status == RequestStatus.RUNNING
        and request.num_computed_tokens == request.num_tokens - 1
    )
