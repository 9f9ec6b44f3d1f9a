# SPDX-License-Identifier: Apache-2.0
"""The engine core follows our planning of KV caches, and refuses connectors that would not."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence, Sized
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from vllm.v1.core import kv_cache_utils
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheTensor,
    MambaSpec,
    SlidingWindowSpec,
)

from mkv_ascend.adapters.common.judge.facts_of_config import connector_names
from mkv_ascend.adapters.common.kv_cache import engine_planning, kv_groups, planned_groups
from mkv_ascend.adapters.common.kv_cache.layer_facts import tie, tied_facts
from mkv_ascend.adapters.common.kv_cache.page_blocks import share_pages
from mkv_ascend.adapters.common.kv_cache.page_shapes import page_shapes_of, with_page_shapes
from mkv_ascend.adapters.patching import Patch, patch, replaced
from mkv_ascend.adapters.vllm_ascend_0_30.common import start_checks
from mkv_ascend.adapters.vllm_ascend_0_30.common.kv_cache.left_alone import (
    refuse_drafts_left_alone,
    why_not_planned,
)
from mkv_ascend.layout.component import are_blocks
from mkv_ascend.rules.kv_cache import SIMPLE_OFFLOAD, ConnectorError, of_groups

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheGroupSpec

    Groups = Sequence[KVCacheGroupSpec]


# Which layers keep their caches page by page, because their operators take strides.
#
# vllm-ascend 0.30.0rc2 gives pages of one size to the attention layers and the states of a hybrid
# model; both advance by the page (its design page on non-contiguous KV caches). vLLM makes the
# block of attention so long that its page holds a state, and pads the state: their components
# have unequal sizes then, and contiguous ones would share no byte.

STRIDED_ATTENTION = (FullAttentionSpec, SlidingWindowSpec)
"""Classes of specs whose operators take strides between blocks; their subclasses' may not."""


def let_strides_be_taken(specs: Mapping[str, Any]) -> None:
    """Tie to each planned spec whether its layer takes strides: all of a hybrid model, or none.

    A stage of a pipeline may have states alone, or keys alone: ``specs`` are those of all stages.
    """
    taken = _are_strided(specs.values())
    for spec in specs.values():
        if (facts := tied_facts(spec)) is not None:
            tie(spec, replace(facts, takes_strides=taken))


def _are_strided(specs: Collection[Any]) -> bool:
    """Whether there are states, and beside them attention that takes strides."""
    others = [spec for spec in specs if not isinstance(spec, MambaSpec)]
    return 0 < len(others) < len(specs) and all(map(_takes_strides, others))


def _takes_strides(spec: Any) -> bool:
    """Whether its operators do; keys of 8 bits are written in form PA_NZ, which is contiguous."""
    return type(spec) in STRIDED_ATTENTION and spec.dtype is not torch.int8


# KV connectors that fail with these KV groups, refused before caches are allocated.


def check_groups(config: VllmConfig, groups: Sized) -> None:
    """Refuse a connector that cannot start with this many groups.

    vLLM's SimpleCPUOffloadScheduler asks the coordinator of its own blocks for
    ``group_block_sizes``. vllm-ascend's AscendHybridKVCacheCoordinator, which takes the place of
    vLLM's for several groups, has none (AttributeError).

    Raises:
        ConnectorError: SimpleCPUOffloadConnector with several groups.
    """
    if len(groups) > 1 and SIMPLE_OFFLOAD in connector_names(config):
        raise ConnectorError(str(of_groups(len(groups))))


# Replacements in ``vllm.v1.core.kv_cache_utils``, so that it follows our planning of KV caches.
#
# ``register_custom_kv_cache_specs`` applies them in the engine core; vLLM calls it before it
# groups. What they do stands in ``common/kv_cache/engine_planning.py``. vLLM 0.30.0 itself counts
# the memory of one request and the requests at once from the bytes of a block, where a page is a
# block.


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
    check_groups(config, groups)
    start_checks.refuse_steps_that_wait(config, [group.kv_cache_spec for group in groups])
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


# The memory that a worker offers where its caches come from a plan.

offer_all = Patch(our_groups.record)
"""The part of that record that workers apply, not the engine core."""


@offer_all.also(target="vllm_ascend.worker.worker:NPUWorker._scale_kv_cache_memory_for_multi_group")
def all_of_the_memory(original: Any, worker: Any, available_memory: int) -> int:
    """All of it, in bytes, for planned caches: the plan counts every byte itself."""
    if why_not_planned(worker.vllm_config, worker.get_kv_cache_spec().values()) is None:
        return available_memory
    return int(original(worker, available_memory))
