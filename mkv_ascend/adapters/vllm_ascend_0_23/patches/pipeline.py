# SPDX-License-Identifier: Apache-2.0
"""Drafts over pipeline stages: what refuses them, their schedule, and KV groups without layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mkv_ascend.adapters.common import pipeline, platform
from mkv_ascend.adapters.contract import WORKER
from mkv_ascend.adapters.patching import patch

if TYPE_CHECKING:
    from vllm.config import ParallelConfig, VllmConfig


# The first two are applied in the front process, the last one in workers, all others in the engine
# core of a target in stages that has a draft.
# What they do stands in ``common/pipeline.py``.

SERVED_BY_US = ("auto", platform.STOCK_WORKER, WORKER)


@patch(
    name="multi-token predictors behind a pipeline",
    target="vllm_ascend.platform:NPUPlatform._validate_pd_pp_mtp_config",
)
def let_predictors_pass(original: Any, owner: Any, config: VllmConfig) -> None:
    """Nothing where our worker runs, whose checks say what it serves over stages."""
    if config.parallel_config.worker_cls not in SERVED_BY_US:
        original(owner, config)


@patch(
    name="drafts that cannot be split over pipeline stages",
    target="vllm.config.speculative:SpeculativeConfig.create_draft_parallel_config",
)
def on_one_stage(original: Any, target: ParallelConfig, ranks: int) -> ParallelConfig:
    """As vLLM's where our worker runs, but on one stage."""
    made: ParallelConfig = original(target, ranks)
    if target.worker_cls in SERVED_BY_US:
        made.world_size //= made.pipeline_parallel_size
        made.pipeline_parallel_size = 1
    return made


@patch(
    name="verify steps under way in a pipeline",
    target=(
        "vllm.v1.core.sched.scheduler:Scheduler._update_after_schedule",
        "vllm.v1.core.sched.scheduler:Scheduler.update_from_output",
    ),
    reads=(
        "vllm.v1.core.sched.scheduler:Scheduler.schedule",
        "vllm.v1.core.sched.scheduler:Scheduler.update_draft_token_ids",
        "vllm.v1.engine.core:EngineCore.step_with_batch_queue",
    ),
)
def hold_back(original: Any, scheduler: Any, scheduled: Any) -> None:
    """As vLLM's; requests of a verify step then wait for its output."""
    original(scheduler, scheduled)
    pipeline.hold_back(scheduler, scheduled)


@hold_back.also(target="vllm.v1.core.sched.scheduler:Scheduler.update_from_output")
def update_from_output(original: Any, scheduler: Any, scheduled: Any, output: Any) -> Any:
    """As vLLM's, between the end of waiting and the draft tokens that came with the output."""
    pipeline.release(scheduler, scheduled)
    taken_in = original(scheduler, scheduled, output)
    pipeline.hand_out(scheduler, output)
    return taken_in


@patch(
    name="draft tokens come with their step's output",
    target="vllm.v1.engine.core:EngineCore.post_step",
)
def post_step(original: Any, core: Any, model_executed: bool) -> None:
    """Nothing: the scheduler was given the tokens with the output."""


# KV groups of which a pipeline stage has no layer: on first stages, a draft's own.
#
# All stages have all KV groups, because a request has a block table for each of them.


@patch(
    name="KV groups of other pipeline stages",
    target=(
        "vllm_ascend.worker.model_runner_v1:NPUModelRunner.initialize_attn_backend",
        "vllm_ascend.worker.model_runner_v1:NPUModelRunner.may_reinitialize_input_batch",
    ),
    reads=("vllm_ascend.worker.model_runner_v1:NPUModelRunner.initialize_kv_cache",),
)
def give_each_an_attention_group(original: Any, runner: Any, config: Any) -> None:
    """As vllm-ascend's; a KV group without layers has an attention group without layers."""
    from vllm.v1.attention.backend import AttentionBackend
    from vllm.v1.worker.utils import AttentionGroup

    original(runner, config)
    for index, groups in enumerate(runner.attn_groups):
        if not groups:
            spec = config.kv_cache_groups[index].kv_cache_spec
            groups.append(AttentionGroup(AttentionBackend, [], spec, index))


@give_each_an_attention_group.also(
    target="vllm_ascend.worker.model_runner_v1:NPUModelRunner.may_reinitialize_input_batch"
)
def forget_those_without_layers(original: Any, runner: Any, config: Any, *args: Any) -> None:
    """As vllm-ascend's, which follows the question: no metadata is built for such groups."""
    for groups in runner.attn_groups:
        groups[:] = [group for group in groups if group.layer_names]
    original(runner, config, *args)
