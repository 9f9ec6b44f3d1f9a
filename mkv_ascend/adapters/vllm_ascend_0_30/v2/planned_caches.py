# SPDX-License-Identifier: Apache-2.0
"""Caches from a plan in model runner V2, and the attention groups of the target's pass."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from vllm.config import get_layers_from_vllm_config
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.v1.worker.utils import AttentionGroup
from vllm_ascend.worker.v2 import attn_utils

from mkv_ascend.adapters.common.kv_cache.block_zeroer import PlannedBlockZeroer
from mkv_ascend.adapters.common.kv_cache.page_shapes import planes_of_groups
from mkv_ascend.adapters.common.kv_cache.planned_caches import (
    LayerSpecs,
    cached_specs,
    give_readers_specs,
    kernel_blocks_of,
    plan_caches,
    served_plan,
)
from mkv_ascend.adapters.logging import get_logger
from mkv_ascend.adapters.patching import record, replaced
from mkv_ascend.adapters.vllm_ascend_0_30.common.kv_cache.left_alone import (
    why_not_planned_groups,
)
from mkv_ascend.layout.materialize import Materialized, materialize
from mkv_ascend.layout.plan import BoundPlan

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig


# Caches from one plan in model runner V2, which takes them from a function of its module.

logger = get_logger(__name__)

ALIGNED = "vllm_ascend.worker.v2.attn_utils:_align_hybrid_attention_page_sizes"

ALLOCATION = record(
    name="caches from a plan in model runner V2",
    target=(
        "vllm.v1.worker.gpu.attn_utils:allocate_kv_cache",
        "vllm_ascend.worker.v2.model_runner:NPUModelRunner.get_kv_cache_spec",
        "vllm_ascend.worker.v2.model_runner:NPUModelRunner.initialize_kv_cache",
        "vllm_ascend.worker.v2.model_runner:NPUModelRunner.execute_model",
        "vllm.v1.worker.gpu.model_runner:GPUModelRunner._init_kv_zero_meta",
        "vllm.v1.worker.gpu.model_runner:GPUModelRunner.profile_cudagraph_memory",
        ALIGNED,
    ),
    reads=(
        "vllm_ascend.worker.v2.attn_utils:get_kv_cache_spec",
        "vllm.v1.worker.gpu.attn_utils:init_kv_cache",
        "vllm_ascend.worker.v2.attn_utils:allocate_kv_cache_main",
    ),
)


@contextmanager
def pages_of_any_sizes() -> Iterator[list[ValueError]]:
    """Let specs stay as they are where vllm-ascend cannot align pages beside states.

    Gives the refusals, which hold where caches are not planned: there they would share bytes.
    """
    align = attn_utils._align_hybrid_attention_page_sizes
    refusals: list[ValueError] = []

    def align_what_can_be(specs: dict[str, Any]) -> None:
        aligned = dict(specs)
        try:
            align(aligned)
        except ValueError as error:
            refusals.append(error)
        else:
            specs.update(aligned)

    with replaced(attn_utils, "_align_hybrid_attention_page_sizes", align_what_can_be):
        yield refusals


def owners_of_read_caches(layers: Mapping[str, Any]) -> dict[str, str]:
    """Layer that reads another layer's cache -> that layer."""
    owners = {
        name: getattr(layer, "kv_sharing_target_layer_name", None) for name, layer in layers.items()
    }
    return {name: owner for name, owner in owners.items() if owner}


class PlannedCaches:
    """Allocates the caches of a worker, from a plan where all kinds are planned.

    Args:
        config: vLLM's.
        draft_layers: names of the draft's layers.
        unaligned: of ``pages_of_any_sizes``.
    """

    plan: BoundPlan | None = None
    _memory: Materialized
    _specs: LayerSpecs = ()

    def __init__(
        self,
        config: VllmConfig,
        draft_layers: Collection[str],
        unaligned: Sequence[ValueError] = (),
    ) -> None:
        self._config, self._draft_layers = config, draft_layers
        self._unaligned = unaligned

    def let_readers_join(self, kv_cache_config: KVCacheConfig) -> None:
        """Let vLLM put layers that read another layer's cache in a group of unlike pages, too."""
        layers = get_layers_from_vllm_config(self._config, AttentionLayerBase)
        give_readers_specs(kv_cache_config.kv_cache_groups, owners_of_read_caches(layers))

    def allocate(
        self,
        original: Callable[..., dict[str, Any]],
        kv_cache_config: KVCacheConfig,
        device: torch.device,
        layout: Any,
        kernel_block_sizes: list[int],
    ) -> dict[str, Any]:
        """Each layer's cache; by ``original``, vllm-ascend's, where they are not planned."""
        layers = get_layers_from_vllm_config(self._config, AttentionLayerBase)
        shared = owners_of_read_caches(layers)
        self._specs = cached_specs(kv_cache_config, shared)
        reason = why_not_planned_groups(self._config, self._specs)
        if reason is not None:
            for refusal in self._unaligned:
                raise refusal
            logger.warning("KV caches are allocated by vllm-ascend, not planned: %s", reason)
            return original(kv_cache_config, device, layout, kernel_block_sizes)
        self.plan = plan_caches(
            self._config,
            kv_cache_config,
            self._specs,
            layers,
            self._draft_layers,
            kernel_blocks_of(kv_cache_config, kernel_block_sizes),
            shared,
        )
        self._memory = materialize(self.plan, device)
        return self._memory.caches

    def zeroer(self, kv_cache_config: KVCacheConfig) -> PlannedBlockZeroer:
        """Zeroes and copies blocks in all planned caches."""
        planes = planes_of_groups(kv_cache_config, self._specs, self._memory.planes)
        return PlannedBlockZeroer(planes)

    def describe(self, kv_cache_config: KVCacheConfig, backends: Mapping[str, str]) -> str:
        """The plan, with what one request takes of it, for the log."""
        assert self.plan is not None, "caches are planned"
        return served_plan(self.plan, kv_cache_config, self._specs, self._config, backends)


TARGET_GROUPS = record(
    name="metadata of the target's pass in model runner V2",
    target="vllm.v1.worker.gpu.model_runner:GPUModelRunner.execute_model",
    reads=(
        "vllm_ascend.worker.v2.model_runner:NPUModelRunner.initialize_kv_cache",
        "vllm_ascend.worker.v2.aclgraph_utils:ModelAclGraphManager.run_fullgraph",
    ),
)


def without_layers(
    groups: Sequence[Sequence[AttentionGroup]], layers: Collection[str]
) -> list[list[AttentionGroup]]:
    """``groups``, by KV group, without ``layers``; a group that has no other layer is left out."""
    limited = []
    for kv_group in groups:
        kept = []
        for group in kv_group:
            names = [name for name in group.layer_names if name not in layers]
            if names:
                kept.append(replace(group, layer_names=names))
        limited.append(kept)
    return limited
