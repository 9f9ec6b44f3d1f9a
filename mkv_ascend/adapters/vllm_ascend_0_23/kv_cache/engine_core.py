# SPDX-License-Identifier: Apache-2.0
"""The engine core follows our planning of KV caches, and refuses connectors that would not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vllm.v1.core import kv_cache_utils
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    HiddenStateCacheSpec,
    KVCacheConfig,
    KVCacheTensor,
    MambaSpec,
)

from mkv_ascend.adapters.common.judge.facts_of_config import connector_names
from mkv_ascend.adapters.common.kv_cache import engine_planning, kv_groups, planned_groups
from mkv_ascend.adapters.common.kv_cache.page_blocks import share_pages
from mkv_ascend.adapters.common.kv_cache.page_shapes import with_page_shapes
from mkv_ascend.adapters.patching import patch
from mkv_ascend.layout.grouping import NULL_BLOCKS
from mkv_ascend.rules.kv_cache import SIMPLE_OFFLOAD, ConnectorError, of_states

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheGroupSpec

    Groups = Sequence[KVCacheGroupSpec]


# KV transfer: what registering the caches with a connector asks of a plan.
#
# Connectors of vllm-ascend read each layer's tuple of tensors: addresses, bytes per block, and
# the storage that a tensor belongs to. Plans give them what vllm-ascend's own allocation gives:
# an allocation for each buffer, starting at a multiple of 2 MiB.

MOONCAKE = "MooncakeConnectorV1"
READING_EACH_TENSOR = frozenset({"RecomputeCPUOffloadConnector", "ExampleHiddenStatesConnector"})
"""Connectors that take any arrangement: they read each tensor by itself, or none of them."""


def check_groups(config: VllmConfig, groups: Sequence[KVCacheGroupSpec]) -> None:
    """Refuse connectors that would lose a part of the caches of these KV groups, or fail later.

    Raises:
        ConnectorError: MooncakeConnectorV1 with several groups of attention, or
            SimpleCPUOffloadConnector with states or without a group that it looks for.
    """
    connectors = connector_names(config)
    has_recurrent_groups = any(isinstance(group.kv_cache_spec, MambaSpec) for group in groups)
    plain = [isinstance(group.kv_cache_spec, FullAttentionSpec) for group in groups]
    if MOONCAKE in connectors and len(groups) > 1 and not has_recurrent_groups and not all(plain):
        raise ConnectorError(
            f"{MOONCAKE} was asked for, and the layers need {len(groups)} KV groups: it then "
            "registers one range for keys and values together, but they are allocations of their "
            "own, so values would be sent from memory that is not registered. Possible: one group "
            "(disable_hybrid_kv_cache_manager), or AscendStoreConnector"
        )
    if SIMPLE_OFFLOAD in connectors and has_recurrent_groups:
        raise ConnectorError(str(of_states()))
    if SIMPLE_OFFLOAD in connectors and not any(plain):
        raise ConnectorError(
            f"{SIMPLE_OFFLOAD} was asked for: it looks for a KV group of full attention whose "
            f"layers are all alike, and none of the {len(groups)} groups is. Possible: a draft "
            "with as many KV heads of the same size as the target, or RecomputeCPUOffloadConnector"
        )


def why_not_registered(config: VllmConfig, specs: Iterable[Any]) -> str | None:
    """Layers for which connectors rely on vllm-ascend's own arrangement; None without any."""
    if config.kv_transfer_config is None:
        return None
    names = connector_names(config)
    if names and names <= READING_EACH_TENSOR:
        return None
    for spec in specs:
        if isinstance(spec, MambaSpec) or getattr(spec, "model_version", None):
            return (
                f"KV transfer is on, and connectors count on vllm-ascend's arrangement of a "
                f"{type(spec).__name__}"
            )
    return None


def why_not_planned(config: VllmConfig, specs: Sequence[Mapping[str, Any]]) -> str | None:
    """What leaves the caches to vllm-ascend's own allocation; ``specs``: by group and layer."""
    reasons = (why_not_registered(config, group.values()) for group in specs)
    return next((reason for reason in reasons if reason is not None), None)


# Replacements in ``vllm.v1.core.kv_cache_utils``, so that it follows our planning of KV caches.
#
# ``register_custom_kv_cache_specs`` applies them in the engine core; vLLM calls it before it
# groups. What they do stands in ``common/kv_cache/engine_planning.py``.


@patch(
    name="KV groups of target and draft",
    target=(
        "vllm.v1.core.kv_cache_utils:get_kv_cache_groups",
        "vllm.v1.engine.core:get_kv_cache_configs",
        "vllm.v1.core.kv_cache_utils:is_kv_cache_spec_uniform",
        "vllm.v1.core.kv_cache_utils:_pool_bytes_per_block",
        "vllm.v1.core.kv_cache_utils:get_kv_cache_config_from_groups",
        "vllm.v1.core.kv_cache_utils:_max_memory_usage_bytes_from_groups",
        "vllm.v1.core.kv_cache_utils:get_max_concurrency_for_kv_cache_config",
        "vllm.v1.core.kv_cache_utils:_check_enough_kv_cache_memory",
        "vllm.v1.core.kv_cache_manager:KVCacheManager.__init__",
    ),
    reads=(
        "vllm.v1.core.kv_cache_utils:may_override_num_blocks",
        "vllm_ascend.patch.platform.patch_kv_cache_utils:group_and_unify_kv_cache_specs",
        "vllm_ascend.patch.platform.patch_kv_cache_utils:_get_kv_cache_groups_uniform_groups",
        "vllm_ascend.core.single_type_kv_cache_manager:CompressAttentionManager",
    ),
)
def our_groups(original: Any, config: VllmConfig, specs: dict[str, Any]) -> Any:
    """Our groups, or vLLM's.

    Raises:
        ConnectorError: the KV connector cannot take that many groups.
    """
    groups = engine_planning.our_groups(original, config, specs, why_not_registered)
    is_planned = planned_groups.are_planned(groups)
    seen = planned_groups.as_vllm_has_them(groups) if is_planned else groups
    check_groups(config, seen)
    return groups


our_groups.also(target="vllm.v1.engine.core:get_kv_cache_configs")(
    engine_planning.configs_of_workers
)
our_groups.also(target="vllm.v1.core.kv_cache_utils:_pool_bytes_per_block")(
    engine_planning.pool_bytes_per_block
)


@our_groups.also(target="vllm.v1.core.kv_cache_utils:is_kv_cache_spec_uniform")
def is_kv_cache_spec_uniform(original: Any, kv_cache_spec: dict[str, Any]) -> bool:
    """Whether one spec stands for all layers; values of two sizes are two specs.

    ``FullAttentionSpec.merge`` compares all fields except ``head_size_v``, and gives every layer
    that of the first. ``AscendMLAAttentionSpec.merge`` reads fields that specs of hidden states
    lack.
    """
    sizes = {getattr(spec, "head_size_v", None) for spec in kv_cache_spec.values()}
    hidden = {isinstance(spec, HiddenStateCacheSpec) for spec in kv_cache_spec.values()}
    return max(len(sizes), len(hidden)) <= 1 and bool(original(kv_cache_spec))


@our_groups.also(target="vllm.v1.core.kv_cache_utils:get_kv_cache_config_from_groups")
def get_kv_cache_config_from_groups(
    original: Any, config: VllmConfig, groups: list[KVCacheGroupSpec], available_memory: int
) -> KVCacheConfig:
    """Blocks and tensors from the plan."""
    if not planned_groups.are_planned(groups):
        result: KVCacheConfig = original(config, groups, available_memory)
        return result
    planned, num_blocks = engine_planning.plan_for(config, groups, available_memory)
    tensors = [
        KVCacheTensor(size=page_bytes * num_blocks, shared_by=layers)
        for page_bytes, layers in planned.plan.tied_layers()
    ]
    seen = planned_groups.as_vllm_has_them(groups)
    shapes = list(map(kv_groups.shape_of_group, groups))
    return with_page_shapes(KVCacheConfig(num_blocks, tensors, seen), shapes)


@our_groups.also(target="vllm.v1.core.kv_cache_utils:_max_memory_usage_bytes_from_groups")
def _max_memory_usage_bytes_from_groups(original: Any, config: VllmConfig, groups: Groups) -> int:
    """Bytes that one request of full length needs, including the block that vLLM keeps."""
    if not planned_groups.are_planned(groups):
        return int(original(config, groups))
    block = kv_cache_utils._pool_bytes_per_block(groups)
    blocks = engine_planning.pages_of_one_request(config, groups) + NULL_BLOCKS
    return blocks * block + engine_planning.alignment_bytes(config, groups)


@our_groups.also(target="vllm.v1.core.kv_cache_utils:get_max_concurrency_for_kv_cache_config")
def get_max_concurrency_for_kv_cache_config(
    original: Any, vllm_config: VllmConfig, kv_cache_config: KVCacheConfig
) -> float:
    """Number of requests of full length that fit at once."""
    return engine_planning.requests_at_once(vllm_config, kv_cache_config)


@our_groups.also(target="vllm.v1.core.kv_cache_manager:KVCacheManager.__init__")
def _give_pages(original: Any, manager: Any, *args: Any, **kwargs: Any) -> None:
    """The scheduler's block pool, of pages where the groups say how their blocks lie in them."""
    original(manager, *args, **kwargs)
    share_pages(manager)


@our_groups.also(target="vllm.v1.core.kv_cache_utils:_check_enough_kv_cache_memory")
def _check_enough_kv_cache_memory(original: Any, *args: Any) -> None:
    """Refuse memory that cannot hold one request; the scheduler would wait for blocks for ever."""
    engine_planning.check_memory(our_groups.record.name, original, *args)
