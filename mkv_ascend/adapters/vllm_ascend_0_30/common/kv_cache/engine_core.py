# SPDX-License-Identifier: Apache-2.0
"""Replacements in ``vllm.v1.core.kv_cache_utils``, so that it follows our planning of KV caches.

``register_custom_kv_cache_specs`` applies them in the engine core; vLLM calls it before it groups.
What they do stands in ``common/kv_cache/engine_planning.py``. vLLM 0.30.0 itself counts the memory
of one request and the requests at once from the bytes of a block, where a page is a block.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from vllm.v1.core import kv_cache_utils
from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheTensor

from mkv_ascend.adapters.common.kv_cache import engine_planning, kv_groups, planned_groups
from mkv_ascend.adapters.common.kv_cache.layer_facts import tie, tied_facts
from mkv_ascend.adapters.common.kv_cache.page_blocks import share_pages
from mkv_ascend.adapters.common.kv_cache.page_shapes import page_shapes_of, with_page_shapes
from mkv_ascend.adapters.patching import patch, replaced
from mkv_ascend.adapters.vllm_ascend_0_30.common.early_checks import states
from mkv_ascend.adapters.vllm_ascend_0_30.common.kv_cache import kv_transfer
from mkv_ascend.adapters.vllm_ascend_0_30.common.kv_cache.left_alone import (
    refuse_drafts_left_alone,
    why_not_planned,
)
from mkv_ascend.adapters.vllm_ascend_0_30.common.kv_cache.strides import let_strides_be_taken
from mkv_ascend.layout.component import are_blocks

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheGroupSpec

    Groups = Sequence[KVCacheGroupSpec]


class GroupsOfAPlan(list["KVCacheGroupSpec"]):
    """Groups as vLLM has them, with the planned ones that they come from.

    A worker with more memory than another one is planned once more, from the groups of its first
    configuration.
    """

    def __init__(self, planned: Groups) -> None:
        super().__init__(planned_groups.as_vllm_has_them(planned))
        self.planned = planned

    def __reduce__(self) -> tuple[Any, ...]:
        """A plain list for workers, which plan from their own layers."""
        return list, (list(self),)


def _planned(groups: Groups) -> Groups:
    return groups.planned if isinstance(groups, GroupsOfAPlan) else groups


@patch(
    name="KV groups of target and draft",
    target=(
        "vllm.v1.core.kv_cache_utils:get_kv_cache_groups",
        "vllm.v1.engine.core:get_kv_cache_configs",
        "vllm.v1.core.kv_cache_utils:_pool_bytes_per_block",
        "vllm.v1.core.kv_cache_utils:get_kv_cache_config_from_groups",
        "vllm.v1.core.kv_cache_utils:_max_memory_usage_bytes_from_groups",
        "vllm.v1.core.kv_cache_utils:get_max_concurrency_for_kv_cache_config",
        "vllm.v1.core.kv_cache_utils:_check_enough_kv_cache_memory",
        "vllm.v1.core.kv_cache_manager:KVCacheManager.__init__",
        "vllm_ascend.worker.model_runner_v1:NPUModelRunner.get_kv_cache_spec",
        "vllm_ascend.worker.worker:NPUWorker._scale_kv_cache_memory_for_multi_group",
    ),
    reads=(
        "vllm.v1.core.kv_cache_utils:may_override_num_blocks",
        "vllm.v1.core.kv_cache_utils:validate_kv_cache_layout",
        "vllm_ascend.worker.worker:NPUWorker.determine_available_memory",
        "vllm_ascend.patch.platform.patch_kv_cache_utils:_ascend_get_kv_cache_config_from_groups",
    ),
    writes=("replace", "index_head_dim"),
    why="vLLM's grouping wants one page size: it refuses pairs, splits all groups to single "
    "layers, or holds every token of a window. Groups of unlike pages need their own counting of "
    "blocks and memory, which comes from the plan. vLLM makes specs of windows anew on the way, "
    "without the facts that are tied to them. Its memory check names no number of blocks. Workers "
    "tell what to group and how much memory there is: vllm-ascend gives a draft's MLA layers the "
    "target's sizes and asks the target, which may have none, for the size of index keys; and it "
    "scales the memory down to that of the largest group, as if groups shared no bytes. The "
    "scheduler's block pool, and what vLLM counts in it, follow the plan, too (page_blocks.py).",
    until="vLLM groups layers of unlike pages in layouts that Ascend's backends take, and "
    "vllm-ascend asks each layer for its sizes and lets groups share bytes",
    test=(
        "tests/emulated/layout/test_layout_groups.py",
        "tests/emulated/layout/test_requests_at_once.py",
        "tests/emulated/layout/test_shared_pages.py",
        "tests/emulated/models/test_mla_specs.py",
    ),
)
def our_groups(original: Any, config: VllmConfig, specs: dict[str, Any]) -> Any:
    """Our groups, or vLLM's.

    Raises:
        ConnectorError: the KV connector cannot take that many groups.
        NotImplementedError: layers beside DeepSeek-V4's cannot be planned.
        ValueError: no step would take a token of a prompt longer than a block of states.
    """
    refuse_drafts_left_alone(config, specs.values())
    let_strides_be_taken(specs)
    groups = engine_planning.our_groups(original, config, specs, why_not_planned)
    kv_transfer.check_groups(config, groups)
    states.refuse_steps_that_wait(config, [group.kv_cache_spec for group in groups])
    return groups


@our_groups.also(target="vllm.v1.engine.core:get_kv_cache_configs")
def _get_kv_cache_configs(original: Any, *args: Any) -> Any:
    """As vLLM's, with facts tied to the specs of windows that it makes anew."""
    with replaced(kv_cache_utils, "replace", _replace_with_facts):
        return engine_planning.configs_of_workers(original, *args)


def _replace_with_facts(spec: Any, **changes: Any) -> Any:
    made = dataclasses.replace(spec, **changes)
    if (facts := tied_facts(spec)) is not None:
        tie(made, facts)
    return made


@our_groups.also(target="vllm.v1.core.kv_cache_utils:_pool_bytes_per_block")
def _pool_bytes_per_block(original: Any, groups: Groups) -> int:
    return engine_planning.pool_bytes_per_block(original, _planned(groups))


@our_groups.also(target="vllm.v1.core.kv_cache_utils:get_kv_cache_config_from_groups")
def get_kv_cache_config_from_groups(
    original: Any, config: VllmConfig, groups: Groups, available_memory: int
) -> KVCacheConfig:
    """Blocks and tensors from the plan: one tensor for each pool, which all its layers alias."""
    groups = _planned(groups)
    if not planned_groups.are_planned(groups):
        result: KVCacheConfig = original(config, groups, available_memory)
        return result
    planned, num_blocks = engine_planning.plan_for(config, groups, available_memory)
    of_vllm = GroupsOfAPlan(groups)
    with replaced(kv_cache_utils, "validate_kv_cache_layout", lambda *_: None):
        # Everything else that vLLM and vllm-ascend tell workers and scheduler with it.
        result = original(config, of_vllm, available_memory)
    tensors = [
        KVCacheTensor(
            size=page_bytes * num_blocks, layers=layers, layer_stride=0, block_stride=page_bytes
        )
        for page_bytes, layers in planned.plan.tied_layers()
    ]
    made = dataclasses.replace(
        result, num_blocks=num_blocks, kv_cache_tensors=tensors, kv_cache_groups=of_vllm
    )
    return with_page_shapes(made, list(map(kv_groups.shape_of_group, groups)))


@our_groups.also(target="vllm.v1.core.kv_cache_utils:_max_memory_usage_bytes_from_groups")
def _max_memory_usage_bytes_from_groups(original: Any, config: VllmConfig, groups: Groups) -> int:
    """Bytes that one request of full length needs, in whole pages."""
    groups = _planned(groups)
    if are_blocks(map(kv_groups.shape_of_group, groups)):
        return int(original(config, groups))
    pages = engine_planning.pages_of_one_request(config, groups)
    return pages * int(kv_cache_utils._pool_bytes_per_block(groups))


@our_groups.also(target="vllm.v1.core.kv_cache_utils:get_max_concurrency_for_kv_cache_config")
def get_max_concurrency_for_kv_cache_config(
    original: Any, vllm_config: VllmConfig, kv_cache_config: KVCacheConfig
) -> float:
    """Number of requests of full length that fit at once."""
    if are_blocks(page_shapes_of(kv_cache_config)):
        return float(original(vllm_config, kv_cache_config))
    return engine_planning.requests_at_once(vllm_config, kv_cache_config)


@our_groups.also(target="vllm.v1.core.kv_cache_manager:KVCacheManager.__init__")
def _give_pages(original: Any, manager: Any, *args: Any, **kwargs: Any) -> None:
    """The scheduler's block pool, of pages where the groups say how their blocks lie in them."""
    original(manager, *args, **kwargs)
    share_pages(manager)


@our_groups.also(target="vllm.v1.core.kv_cache_utils:_check_enough_kv_cache_memory")
def _check_enough_kv_cache_memory(original: Any, *args: Any) -> None:
    """Refuse memory that cannot hold one request, and say how many blocks it needs."""
    engine_planning.check_memory(our_groups.record.name, original, *args)
