# SPDX-License-Identifier: Apache-2.0
"""What vllm-ascend 0.23.0 does in its own way in model runner V1."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from vllm.config import get_layers_from_vllm_config
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm_ascend.ascend_config import get_ascend_config

from mkv_ascend.adapters.common.kv_cache.kernel_blocks import with_kernel_blocks
from mkv_ascend.adapters.common.kv_cache.layer_facts import tie_facts
from mkv_ascend.adapters.common.runner_host import RunnerHost
from mkv_ascend.adapters.vllm_ascend_0_23.drafting.host import HOST
from mkv_ascend.adapters.vllm_ascend_0_23.kv_cache.engine_core import why_not_planned
from mkv_ascend.adapters.vllm_ascend_0_23.kv_cache.worker_caches import (
    POOL,
    corrected_specs,
    slots_in_one_launch,
)
from mkv_ascend.adapters.vllm_ascend_0_23.patches.recurrent import refuse_short_steps
from mkv_ascend.adapters.vllm_ascend_0_23.patches.target_fixes import record_identity_rope

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig

    from mkv_ascend.adapters.common.runner import MkvModelRunner


def _planned_specs(runner: MkvModelRunner, ask: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    layers = get_layers_from_vllm_config(runner.vllm_config, AttentionLayerBase)
    replicas = runner.sfa_dcp_replicated_indexer_size
    specs = corrected_specs(ask(), layers, runner.vllm_config, replicas)
    specs = with_kernel_blocks(specs, layers, runner.draft_layers())
    tie_facts(specs, layers, runner.draft_layers())
    return specs


def _limit_the_targets_pass(runner: MkvModelRunner) -> None:
    """Limit it, and compute the slots of all groups in one launch."""
    # Metadata of Hamming attention differs by group.
    if runner.limit_the_targets_pass(runner.use_cp, share=not runner.enable_hamming_sparse):
        slots_in_one_launch(
            runner.input_batch.block_table,
            runner.attn_groups,
            runner.draft_layers(),
            runner.max_num_reqs,
        )


def _loaded(config: VllmConfig, device: torch.device) -> None:
    refuse_short_steps(config)
    record_identity_rope(config, device)


def _graphs_sleep() -> bool:
    return bool(get_ascend_config().enable_sleep_mode_extra_cleanup)


RUNNER_HOST = RunnerHost(
    drafts=HOST,
    why_not_planned=why_not_planned,
    planned_specs=_planned_specs,
    limit_the_targets_pass=_limit_the_targets_pass,
    graphs_sleep=_graphs_sleep,
    loaded=_loaded,
    memory_of_caches=POOL.opened,
)
