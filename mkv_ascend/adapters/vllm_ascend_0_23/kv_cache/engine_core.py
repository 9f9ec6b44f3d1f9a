# SPDX-License-Identifier: Apache-2.0
"""Replacements in ``vllm.v1.core.kv_cache_utils``, so that it follows our planning of KV caches.

``register_custom_kv_cache_specs`` applies them in the engine core; vLLM calls it before it groups.
Groups are our own where target and draft need several, or where vLLM cannot group the layers at
all. Otherwise they are vLLM's. Either way blocks, memory and concurrency are counted from the plan.
For layers that are not planned each replacement calls the original.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from vllm.v1.core import kv_cache_utils
from vllm.v1.kv_cache_interface import (
    HiddenStateCacheSpec,
    KVCacheConfig,
    KVCacheTensor,
)

from mkv_ascend.adapters.patching import expect, patch
from mkv_ascend.adapters.vllm_ascend_0_23.kv_cache import kv_groups, kv_transfer, planned_groups
from mkv_ascend.adapters.vllm_ascend_0_23.kv_cache.layer_facts import tied_facts
from mkv_ascend.adapters.vllm_ascend_0_23.kv_cache.planned_caches import blocks_of_request
from mkv_ascend.layout.admission import NULL_BLOCKS, AdmissionError
from mkv_ascend.layout.grouping import MIB
from mkv_ascend.layout.planning import plan
from mkv_ascend.layout.pooling import bytes_per_block

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheGroupSpec

    Groups = Sequence[KVCacheGroupSpec]


@patch(
    name="KV groups of target and draft",
    target=(
        "vllm.v1.core.kv_cache_utils:get_kv_cache_groups",
        "vllm.v1.core.kv_cache_utils:is_kv_cache_spec_uniform",
        "vllm.v1.core.kv_cache_utils:_pool_bytes_per_block",
        "vllm.v1.core.kv_cache_utils:get_kv_cache_config_from_groups",
        "vllm.v1.core.kv_cache_utils:_max_memory_usage_bytes_from_groups",
        "vllm.v1.core.kv_cache_utils:get_max_concurrency_for_kv_cache_config",
        "vllm.v1.core.kv_cache_utils:_check_enough_kv_cache_memory",
    ),
    reads=(
        "vllm.v1.core.kv_cache_utils:get_kv_cache_configs",
        "vllm.v1.core.kv_cache_utils:may_override_num_blocks",
        "vllm_ascend.patch.platform.patch_kv_cache_utils:group_and_unify_kv_cache_specs",
        "vllm_ascend.patch.platform.patch_kv_cache_utils:_get_kv_cache_groups_uniform_groups",
    ),
    why="vLLM's grouping wants one page size: it refuses pairs (MLA with a window draft) and "
    "models (MLA with recurrent states), or splits all groups to single layers. Groups of unlike "
    "pages then need their own counting of blocks, memory and concurrency, which comes from the "
    "plan. The memory check lets start engines that have no block for vLLM's own null block, whose "
    "first long request waits for ever. And keys of one size with values of several count as one "
    "spec, the first layer's.",
    until="vLLM groups layers of unlike pages, or the grouping is a hook of the platform",
    test="tests/emulated/layout/test_layout_groups.py",
)
def our_groups(original: Any, config: VllmConfig, specs: dict[str, Any]) -> Any:
    """Our groups, or vLLM's.

    Raises:
        ConnectorError: the KV connector cannot take that many groups.
    """
    groups = _groups(original, config, specs)
    is_planned = planned_groups.are_planned(groups)
    seen = planned_groups.as_vllm_has_them(groups) if is_planned else groups
    kv_transfer.check_groups(config, seen)
    return groups


def _groups(original: Any, config: VllmConfig, specs: dict[str, Any]) -> Any:
    """The groups, with the facts of every layer if all layers are planned."""
    facts = {name: tied_facts(spec) for name, spec in specs.items()}
    if kv_transfer.why_not_registered(config, specs.values()) is not None or None in facts.values():
        return original(config, specs)
    planned_groups.require_layouts(specs)
    if planned_groups.are_searched(config, specs):
        return kv_groups.merge_groups(config, specs)
    return planned_groups.with_facts(original(config, specs), facts)


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
    if not planned_groups.are_planned(groups):
        return int(original(groups))
    # vLLM does not pass its configuration here; these bytes do not depend on it.
    return bytes_per_block(
        [
            [kv_groups.layout_of_spec(spec) for spec in kv_groups.specs_by_layer(group).values()]
            for group in groups
        ]
    )


@our_groups.also(target="vllm.v1.core.kv_cache_utils:get_kv_cache_config_from_groups")
def get_kv_cache_config_from_groups(
    original: Any, config: VllmConfig, groups: list[KVCacheGroupSpec], available_memory: int
) -> KVCacheConfig:
    """Blocks and tensors from the plan: one tensor for each pool."""
    if not planned_groups.are_planned(groups):
        result: KVCacheConfig = original(config, groups, available_memory)
        return result
    planned = plan(kv_groups.given_inputs(config, groups))
    num_blocks = kv_cache_utils.may_override_num_blocks(
        config, planned.num_blocks(available_memory)
    )
    tensors = [
        KVCacheTensor(
            size=pool.bytes_per_block * num_blocks,
            shared_by=[placed.layer for placed in pool.layers],
        )
        for pool in planned.plan.pools
    ]
    return KVCacheConfig(num_blocks, tensors, planned_groups.as_vllm_has_them(groups))


def _blocks_of_request(config: VllmConfig, groups: Groups) -> int:
    return sum(blocks_of_request(group.kv_cache_spec, config) for group in groups)


@our_groups.also(target="vllm.v1.core.kv_cache_utils:_max_memory_usage_bytes_from_groups")
def _max_memory_usage_bytes_from_groups(original: Any, config: VllmConfig, groups: Groups) -> int:
    """Bytes that one request of full length needs, including the block that vLLM keeps."""
    if not planned_groups.are_planned(groups):
        return int(original(config, groups))
    block = kv_cache_utils._pool_bytes_per_block(groups)
    blocks = _blocks_of_request(config, groups) + NULL_BLOCKS
    return blocks * block + _alignment_bytes(config, groups)


def _alignment_bytes(config: VllmConfig, groups: Groups) -> int:
    """Bytes beside the blocks; 0 if the number of blocks is fixed by an option."""
    fixed = config.cache_config.num_gpu_blocks_override is not None
    if fixed or config.kv_transfer_config is None:
        return 0
    return plan(kv_groups.given_inputs(config, groups)).plan.overhead_bytes


@our_groups.also(target="vllm.v1.core.kv_cache_utils:get_max_concurrency_for_kv_cache_config")
def get_max_concurrency_for_kv_cache_config(
    original: Any, vllm_config: VllmConfig, kv_cache_config: KVCacheConfig
) -> float:
    """Number of requests of full length that fit at once."""
    groups = kv_cache_config.kv_cache_groups
    return kv_cache_config.num_blocks / _blocks_of_request(vllm_config, groups)


@our_groups.also(target="vllm.v1.core.kv_cache_utils:_check_enough_kv_cache_memory")
def _check_enough_kv_cache_memory(
    original: Any,
    available_memory: int,
    get_needed_memory: Any,
    max_model_len: int,
    estimate_max_model_len: Callable[[int], int],
) -> None:
    """Refuse memory that cannot hold one request; the scheduler would wait for blocks for ever.

    Raises:
        AdmissionError: the memory is too small; with the numbers and what to change.
        ValueError: vLLM's own error, for groups that are not planned here.
    """
    # vLLM binds configuration and groups to the function that counts the memory.
    expect(
        len(getattr(get_needed_memory, "args", ())) == 2,
        our_groups.record.name,
        "the memory check is not given the groups with get_needed_memory",
    )
    config, groups = get_needed_memory.args
    if not planned_groups.are_planned(groups) or available_memory <= 0:
        original(available_memory, get_needed_memory, max_model_len, estimate_max_model_len)
        return
    block = kv_cache_utils._pool_bytes_per_block(groups)
    aligned = _alignment_bytes(config, groups)
    needed = -(-(get_needed_memory() - aligned) // block)
    available = max(available_memory - aligned, 0) // block
    if needed <= available:
        return
    longest = estimate_max_model_len(available_memory)
    possible = ["give the KV cache more memory (gpu_memory_utilization, kv_cache_memory_bytes)"]
    if longest:
        possible.insert(0, f"lower max_model_len to {longest} or less")
    if config.cache_config.num_gpu_blocks_override is not None:
        possible.append(f"raise num_gpu_blocks_override to {needed} or more")
    if hint := _cheaper_objective(config, groups):
        possible.append(hint)
    raise AdmissionError(
        f"one request of {max_model_len} tokens needs {needed} KV cache blocks of {block} bytes "
        f"({needed * block / MIB:.1f} MiB, {NULL_BLOCKS} block being vLLM's own) in {len(groups)} "
        f"KV groups; there are {available} ({available_memory / MIB:.1f} MiB"
        f"{f' less {aligned / MIB:.0f} MiB that align caches for transfer' if aligned else ''}), "
        f"enough for "
        f"{longest} tokens. Possible: {'; '.join(possible)}"
    )


def _cheaper_objective(config: VllmConfig, groups: Groups) -> str | None:
    """The option that would need less memory; None if there is none."""
    specs = {
        name: spec for group in groups for name, spec in kv_groups.specs_by_layer(group).items()
    }
    if not planned_groups.are_searched(config, specs):
        return None
    grouping = kv_groups.search(config, specs)
    if grouping.other_cost.held_bytes >= grouping.cost.held_bytes:
        return None
    return f"set layout.objective to {grouping.other_objective} ({grouping.other_cost})"
