# SPDX-License-Identifier: Apache-2.0
"""Caches of one worker from one plan, in place of vllm-ascend's allocation and reshaping."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vllm.utils.math_utils import cdiv
from vllm.v1.kv_cache_interface import EncoderOnlyAttentionSpec, UniformTypeKVCacheSpecs

from mkv_ascend.adapters.common.kv_cache.kv_groups import (
    inputs_of_layouts,
    specs_by_layer,
)
from mkv_ascend.adapters.common.kv_cache.layer_facts import (
    WITHOUT_KERNEL_BLOCKS,
    facts_of_layer,
    tied_facts,
)
from mkv_ascend.adapters.common.kv_cache.page_shapes import page_shapes_of
from mkv_ascend.layout import planning
from mkv_ascend.layout.component import LayoutError
from mkv_ascend.layout.plan import BoundPlan
from mkv_ascend.layout.recipes import layout_of
from mkv_ascend.layout.report import served_text

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec

LayerSpecs = Sequence[Mapping[str, Any]]
"""For each KV group, the spec of each of its layers that has a cache of its own."""


def cached_specs(kv_cache_config: KVCacheConfig, without_cache: Collection[str]) -> LayerSpecs:
    """Specs by group and layer. ``without_cache``: layers that read another layer's, or none."""
    specs = []
    for group in kv_cache_config.kv_cache_groups:
        own = [name for name in group.layer_names if name not in without_cache]
        specs.append(specs_by_layer(type(group)(own, group.kv_cache_spec)))
    return specs


def give_readers_specs(groups: Iterable[KVCacheGroupSpec], owners: Mapping[str, str]) -> None:
    """Give layers that read another layer's cache its spec, where a group has one for each layer.

    Args:
        groups: are changed.
        owners: such a layer -> the one whose cache it reads. vLLM lets it join that layer's group.
    """
    for group in groups:
        if isinstance(group.kv_cache_spec, UniformTypeKVCacheSpecs):
            specs = group.kv_cache_spec.kv_cache_specs
            for name, owner in owners.items():
                if owner in specs:
                    specs.setdefault(name, specs[owner])


def kernel_blocks_of(
    kv_cache_config: KVCacheConfig, sizes: Sequence[int | Sequence[int]]
) -> list[int | None]:
    """For each KV group, its size or the first of its sizes.

    vllm-ascend has several sizes (0.23.0) or one (0.30.0rc2), and none for encoder-only layers.
    """
    first = iter([size if isinstance(size, int) else size[0] for size in sizes])
    return [
        None if isinstance(group.kv_cache_spec, EncoderOnlyAttentionSpec) else next(first)
        for group in kv_cache_config.kv_cache_groups
    ]


def plan_caches(
    config: VllmConfig,
    kv_cache_config: KVCacheConfig,
    specs: LayerSpecs,
    layers: Mapping[str, Any],
    draft_layers: Collection[str],
    kernel_blocks: Sequence[int | None],
    shared: Mapping[str, str],
) -> BoundPlan:
    """The plan of this worker's caches, for the number of blocks that the engine core gave it.

    Args:
        kernel_blocks: for each KV group, the rows that its block table splits blocks into.
        shared: layers without a cache, and the layers whose cache they read.

    Raises:
        LayoutError: something does not divide, two blocks would share a byte, or the plan takes
            more memory than the engine core counted.
    """
    layouts = {
        name: layout_of(
            spec,
            facts_of_layer(
                name,
                layers[name],
                draft_layers,
                None if isinstance(spec, WITHOUT_KERNEL_BLOCKS) else kernel_block or None,
                # As the engine core decided, which knows the layers of all stages.
                takes_strides=(facts := tied_facts(spec)) is not None and facts.takes_strides,
            ),
        )
        for group, kernel_block in zip(specs, kernel_blocks, strict=True)
        for name, spec in group.items()
    }
    plan = planning.plan(
        inputs_of_layouts(config, specs, layouts, shared, page_shapes_of(kv_cache_config))
    ).plan
    bound = plan.bind(kv_cache_config.num_blocks)
    counted = sum(tensor.size for tensor in kv_cache_config.kv_cache_tensors)
    if bound.total_bytes > counted + plan.overhead_bytes:
        raise LayoutError(
            f"the plan takes {bound.total_bytes} bytes for {bound.num_blocks} blocks, the engine "
            f"core counted {counted}; both must group the same layers: report this"
        )
    return bound


def served_plan(
    plan: BoundPlan,
    kv_cache_config: KVCacheConfig,
    specs: LayerSpecs,
    config: VllmConfig,
    backends: Mapping[str, str],
) -> str:
    """The plan as text, with what one request of ``max_model_len`` takes of it, for the log.

    ``specs``: as given to ``plan_caches``. ``backends``: backend by layer.
    """
    groups = kv_cache_config.kv_cache_groups
    blocks = [
        blocks_of_request(group.kv_cache_spec, config)
        for group, own in zip(groups, specs, strict=True)
        if own
    ]
    return served_text(plan, config.model_config.max_model_len, blocks, backends)


def blocks_of_request(spec: Any, config: VllmConfig) -> int:
    """Blocks of one KV group that vLLM admits a request of ``max_model_len`` with."""
    if isinstance(spec, UniformTypeKVCacheSpecs):
        return int(spec.max_memory_usage_pages(config))
    return int(cdiv(spec.max_memory_usage_bytes(config), spec.page_size_bytes))
