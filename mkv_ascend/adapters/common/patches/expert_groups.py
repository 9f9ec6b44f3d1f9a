# SPDX-License-Identifier: Apache-2.0
"""The group of processes that a draft's experts need where the target has none.

vLLM 0.23.0 makes the expert-parallel group only for a target with experts, and layers with experts
ask for it when they are built. Expert parallelism itself vLLM refuses with such a target, so that
all of a draft's experts are on every rank, each rank with its share of every expert.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from vllm.config import set_current_vllm_config
from vllm.distributed import parallel_state

from mkv_ascend.adapters.common.drafting.records import DRAFT_CONFIG
from mkv_ascend.adapters.patching import expect

if TYPE_CHECKING:
    from vllm.config import ParallelConfig, VllmConfig


def only_draft_has_experts(config: VllmConfig) -> bool:
    """Whether there is a draft with experts and the target has none."""
    draft = getattr(config.speculative_config, "draft_model_config", None)
    return draft is not None and draft.is_moe and not config.model_config.is_moe


def make_for_draft(config: VllmConfig) -> None:
    """Make the group on every rank of the world; vLLM's other groups must be there.

    To be called before a model is loaded.
    """
    if not only_draft_has_experts(config):
        return
    group = getattr(parallel_state, "_EP", config)
    expect(group is None, DRAFT_CONFIG.name, "vLLM made it, or keeps it elsewhere")
    world = parallel_state.get_world_group()
    # vllm-ascend's communicator asks for the configuration, which V2's worker sets later.
    with set_current_vllm_config(config):
        parallel_state._EP = parallel_state.init_model_parallel_group(
            ranks_of_groups(config.parallel_config, world.world_size),
            world.local_rank,
            torch.distributed.get_backend(world.device_group),
            group_name="ep",
        )


def ranks_of_groups(parallel: ParallelConfig, world_size: int) -> list[list[int]]:
    """Ranks that share experts: those of one pipeline stage.

    vLLM's ``initialize_model_parallel`` counts ranks by outer data parallelism, inner, pipeline
    stage, prefill context, tensor.
    """
    inner = parallel.prefill_context_parallel_size * parallel.tensor_parallel_size
    ranks = torch.arange(world_size).reshape(
        -1, parallel.data_parallel_size, parallel.pipeline_parallel_size, inner
    )
    groups: list[list[int]] = (
        ranks.transpose(1, 2).reshape(-1, parallel.data_parallel_size * inner).tolist()
    )
    return groups
