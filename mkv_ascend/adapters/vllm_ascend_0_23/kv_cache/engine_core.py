# SPDX-License-Identifier: Apache-2.0
"""Replacements in ``vllm.v1.core.kv_cache_utils``, so that it follows our planning of KV caches.

``register_custom_kv_cache_specs`` applies them in the engine core; vLLM calls it before it groups.
What they do stands in ``common/kv_cache/engine_planning.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from vllm.v1.core import kv_cache_utils
from vllm.v1.kv_cache_interface import (
    HiddenStateCacheSpec,
    KVCacheConfig,
    KVCacheTensor,
)

from mkv_ascend.adapters.common.kv_cache import engine_planning, kv_groups, planned_groups
from mkv_ascend.adapters.common.kv_cache.page_blocks import share_pages
from mkv_ascend.adapters.common.kv_cache.page_shapes import with_page_shapes
from mkv_ascend.adapters.patching import patch
from mkv_ascend.adapters.vllm_ascend_0_23.kv_cache import kv_transfer
from mkv_ascend.layout.grouping import NULL_BLOCKS

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheGroupSpec

    Groups = Sequence[KVCacheGroupSpec]


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
    why="vLLM's grouping wants one page size: it refuses pairs (MLA with a window draft) and "
    "models (MLA with recurrent states), or splits all groups to single layers. Groups of unlike "
    "pages then need their own counting of blocks, memory and concurrency, which comes from the "
    "plan. The memory check lets start engines that have no block for vLLM's own null block, whose "
    "first long request waits for ever. And keys of one size with values of several count as one "
    "spec, the first layer's. The scheduler's block pool follows the plan, too (page_blocks.py).",
    until="vLLM groups layers of unlike pages, or the grouping is a hook of the platform",
    test=(
        "tests/emulated/layout/test_layout_groups.py",
        "tests/emulated/layout/test_shared_pages.py",
    ),
)
def our_groups(original: Any, config: VllmConfig, specs: dict[str, Any]) -> Any:
    """Our groups, or vLLM's.

    Raises:
        ConnectorError: the KV connector cannot take that many groups.
    """
    groups = engine_planning.our_groups(original, config, specs, kv_transfer.why_not_registered)
    is_planned = planned_groups.are_planned(groups)
    seen = planned_groups.as_vllm_has_them(groups) if is_planned else groups
    kv_transfer.check_groups(config, seen)
    return groups


@our_groups.also(target="vllm.v1.engine.core:get_kv_cache_configs")
def _get_kv_cache_configs(original: Any, *args: Any) -> Any:
    return engine_planning.configs_of_workers(original, *args)


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


@our_groups.also(target="vllm.v1.core.kv_cache_utils:_pool_bytes_per_block")
def _pool_bytes_per_block(original: Any, groups: Groups) -> int:
    return engine_planning.pool_bytes_per_block(original, groups)


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
