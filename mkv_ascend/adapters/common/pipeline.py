# SPDX-License-Identifier: Apache-2.0
"""Drafts under pipeline parallelism: the draft is whole, on the last stage.

* A model asks vLLM's group of pipeline ranks which of its layers it has. While the draft is built
  and run, that group is one stage (``whole``).
* First stages append the sampled token alone, not the accepted drafts before it. They are told all
  tokens of a request beside that, so that they can (``catch_up``).
* Draft tokens go to the scheduler with the output of their step (``with_drafts``), because by the
  time that vLLM asks for them another batch has run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from vllm.distributed import parallel_state
from vllm.distributed import utils as distributed_utils
from vllm.distributed.parallel_state import get_pp_group
from vllm.v1.outputs import ModelRunnerOutput

from mkv_ascend.adapters.common.drafting.target_parts import embeddings_of
from mkv_ascend.adapters.common.judge.early_check import serves_drafts_in_stages
from mkv_ascend.adapters.logging import get_logger
from mkv_ascend.adapters.patching import record, replaced
from mkv_ascend.drafting.stages import accepted_since

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.outputs import DraftTokenIds

logger = get_logger(__name__)
DRAFTS = "mkv_ascend_drafts"
"""Attribute of a step's output: its draft tokens (``DraftTokenIds``)."""

ONE_STAGE = record(
    name="the draft is whole on the last pipeline stage",
    target=("vllm.distributed.parallel_state:_PP", "vllm.distributed.utils:get_pp_indices"),
    why="Models ask the group of pipeline ranks for their share of layers, and for whether they "
    "embed tokens. Of a draft model the last stage would build half, and wait for the other. "
    "VLLM_PP_LAYER_PARTITION shares out the target's layers, and would share out the draft's.",
    until="vLLM builds and runs drafts in a group of their own, as it does for tensor parallelism",
    test="tests/emulated/drafting/test_pipeline.py",
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
    writes=("num_output_placeholders", "prepare_inputs_event"),
    why="By the time that the engine asks for draft tokens, another batch has run. And a first "
    "stage appends the sampled token alone, without the accepted drafts before it. It does not "
    "wait for its device, and writes a step's inputs over those that are still to be copied there.",
    until="vLLM serves drafts in a pipeline without asynchronous scheduling",
    test="tests/emulated/drafting/test_pipeline.py",
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
