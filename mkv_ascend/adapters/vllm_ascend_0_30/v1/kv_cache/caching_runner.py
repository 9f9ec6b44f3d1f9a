# SPDX-License-Identifier: Apache-2.0
"""The part of the model runner that allocates KV caches from one plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm.config import get_layers_from_vllm_config
from vllm.model_executor.layers.attention import Attention, MLAAttention
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.model_executor.layers.mamba.abstract import MambaBase
from vllm.v1.kv_cache_interface import UniformTypeKVCacheSpecs

from mkv_ascend.adapters.common.kv_cache.block_zeroer import PlannedBlockZeroer
from mkv_ascend.adapters.common.kv_cache.layer_facts import tie_facts
from mkv_ascend.adapters.common.kv_cache.planned_caches import (
    cached_specs,
    kernel_blocks_of,
    plan_caches,
)
from mkv_ascend.adapters.common.runner import HostRunner
from mkv_ascend.adapters.logging import get_logger
from mkv_ascend.adapters.patching import override, record
from mkv_ascend.adapters.vllm_ascend_0_30.v1.kv_cache.left_alone import why_not_planned_groups
from mkv_ascend.adapters.vllm_ascend_0_30.v1.kv_cache.mla_specs import corrected_specs
from mkv_ascend.adapters.vllm_ascend_0_30.v1.kv_cache.strides import layers_with_strides
from mkv_ascend.layout.materialize import Materialized, materialize

if TYPE_CHECKING:
    from vllm.v1.kv_cache_interface import KVCacheConfig

logger = get_logger(__name__)

OF_VLLM = (Attention, MLAAttention, MambaBase)
"""Layers that take the cache tensors themselves, not a list of them."""

CACHES = record(
    name="caches from a plan",
    target=(
        "vllm_ascend.worker.model_runner_v1:NPUModelRunner._allocate_kv_cache_tensors",
        "vllm_ascend.worker.model_runner_v1:NPUModelRunner._reshape_kv_cache_tensors",
        "vllm_ascend.worker.model_runner_v1:NPUModelRunner.initialize_kv_cache_tensors",
        "vllm_ascend.worker.model_runner_v1:NPUModelRunner._init_kv_zero_meta",
    ),
    reads=("vllm_ascend.worker.model_runner_v1:NPUModelRunner.initialize_kv_cache",),
    writes=("_kv_block_zeroer", "kv_cache", "hybrid_with_attn_and_mamba"),
    why="Every layer has a buffer of its own, so groups of layers that take turns in a block share "
    "no bytes. Ours come from the plan, in their final shapes. The zeroer leaves out the padding "
    "and the states of a block. Beside a DeepSeek-V4 target, caches of the draft are bound in a "
    "list, as that target's layers take them.",
    until="vllm-ascend lets layers of all groups share bytes",
    test="tests/emulated/layout/test_planned_runner.py",
)

SPECS = record(
    name="specs of layers",
    target=(
        "vllm_ascend.worker.model_runner_v1:NPUModelRunner.get_kv_cache_spec",
        "vllm.v1.worker.gpu_model_runner:GPUModelRunner."
        "maybe_add_kv_sharing_layers_to_kv_cache_groups",
    ),
    why="Beside a target with sparse attention, the sizes of the draft's MLA layers are the "
    "target's. Layers that read another layer's cache join its group, whose specs by layer then "
    "lack them.",
    until="vllm-ascend asks the layer, and vLLM's method adds the spec",
    test="tests/emulated/models/test_latent_specs.py",
)


class CachingRunner(HostRunner):
    """vllm-ascend's runner with planned KV caches."""

    _cache_memory: Materialized
    _strided: frozenset[str] = frozenset()

    @override(SPECS)
    def get_kv_cache_spec(self) -> dict[str, Any]:
        """The spec of every layer with a cache, with the facts that planning needs besides."""
        all_layers = get_layers_from_vllm_config(self.vllm_config, AttentionLayerBase)
        specs = corrected_specs(super().get_kv_cache_spec(), all_layers)
        self._strided = layers_with_strides(specs)
        tie_facts(specs, all_layers, self._draft_layers(), self._strided)
        return specs

    @override(SPECS)
    def maybe_add_kv_sharing_layers_to_kv_cache_groups(
        self, kv_cache_config: KVCacheConfig
    ) -> None:
        """Let layers that read another layer's cache join its group, with its spec."""
        super().maybe_add_kv_sharing_layers_to_kv_cache_groups(kv_cache_config)
        for group in kv_cache_config.kv_cache_groups:
            if isinstance(group.kv_cache_spec, UniformTypeKVCacheSpecs):
                specs = group.kv_cache_spec.kv_cache_specs
                for name in group.layer_names:
                    if name not in specs:
                        specs[name] = specs[self.shared_kv_cache_layers[name]]

    @override(CACHES)
    def initialize_kv_cache_tensors(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Bind plain caches to vLLM's own layers."""
        caches: dict[str, Any] = super().initialize_kv_cache_tensors(*args, **kwargs)
        for name, cache in caches.items():
            layer = self.compilation_config.static_forward_context[name]
            if isinstance(layer, OF_VLLM) and isinstance(layer.kv_cache, list):
                layer.kv_cache = cache
        return caches

    @override(CACHES)
    def _allocate_kv_cache_tensors(self, kv_cache_config: KVCacheConfig) -> dict[str, Any]:
        """Every layer's cache in its final shape, from one plan, if all kinds are planned."""
        specs = cached_specs(kv_cache_config, self.runner_only_attn_layers)
        reason = why_not_planned_groups(self.vllm_config, specs)
        self.cache_plan = None
        if reason is not None:
            logger.warning("KV caches are allocated by vllm-ascend, not planned: %s", reason)
            raw: dict[str, Any] = super()._allocate_kv_cache_tensors(kv_cache_config)
            return raw
        self.cache_plan = plan_caches(
            self.vllm_config,
            kv_cache_config,
            specs,
            get_layers_from_vllm_config(self.vllm_config, AttentionLayerBase),
            self._draft_layers(),
            kernel_blocks_of(kv_cache_config, [[size] for size in self.kernel_block_sizes]),
            self.shared_kv_cache_layers,
            self._strided,
        )
        self.hybrid_with_attn_and_mamba = False
        self._cache_memory = materialize(self.cache_plan, self.device)
        return self._cache_memory.caches

    @override(CACHES)
    def _reshape_kv_cache_tensors(
        self, kv_cache_config: KVCacheConfig, kv_cache_raw_tensors: dict[str, Any], *args: Any
    ) -> dict[str, Any]:
        """As vllm-ascend's; planned caches need no reshaping."""
        if self.cache_plan is not None:
            return kv_cache_raw_tensors
        reshaped: dict[str, Any] = super()._reshape_kv_cache_tensors(
            kv_cache_config, kv_cache_raw_tensors, *args
        )
        return reshaped

    @override(CACHES)
    def _init_kv_zero_meta(self) -> None:
        """Let the scheduler zero blocks in all planned caches."""
        if self.cache_plan is None:
            super()._init_kv_zero_meta()
            return
        self._kv_block_zeroer = PlannedBlockZeroer(self._cache_memory.planes)
