# SPDX-License-Identifier: Apache-2.0
"""Experts: the group of processes that a draft's need, and experts without gates."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from vllm.config import set_current_vllm_config
from vllm.distributed import parallel_state
from vllm.model_executor.layers.fused_moe.activation import MoEActivation, apply_moe_activation

from mkv_ascend.adapters.common.drafting.records import DRAFT_CONFIG
from mkv_ascend.adapters.patching import expect

if TYPE_CHECKING:
    from vllm.config import ParallelConfig, VllmConfig


# The group of processes that a draft's experts need where the target has none.
#
# vLLM 0.23.0 makes the expert-parallel group only for a target with experts, and layers with
# experts ask for it when they are built. Expert parallelism itself vLLM refuses with such a
# target, so that all of a draft's experts are on every rank, each rank with its share of every
# expert.


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


# Experts of two matrices, without a gate, as Nemotron-H's (squared ReLU between them).
#
# What is replaced for them differs between hosts; this is what replacements share.

ALLOWED = SimpleNamespace(is_cuda_alike=lambda: True)
"""A platform, for code that asks nothing but whether it may build such a layer."""


def has_no_gate(activation: Any) -> bool:
    """Whether vLLM's ``activation`` takes the first matrix's rows as they are."""
    return isinstance(activation, MoEActivation) and not activation.is_gated


def activated(activation: MoEActivation, rows: torch.Tensor) -> torch.Tensor:
    """``rows`` of the first matrix after vLLM's own ``activation``."""
    output: torch.Tensor = apply_moe_activation(activation, torch.empty_like(rows), rows)
    return output


def lacks_the_first_matrix(shared: Any) -> bool:
    """Whether vllm-ascend would not find the first matrix of shared experts: it has no gate.

    It is asked for as ``gate_up_proj``. Whoever sets that registers no module a second time, so
    that its weights are loaded and counted once.
    """
    return shared is not None and not hasattr(shared, "gate_up_proj")
