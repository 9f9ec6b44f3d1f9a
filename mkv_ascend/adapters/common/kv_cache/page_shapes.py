# SPDX-License-Identifier: Apache-2.0
"""How many blocks of each KV group a page holds, on the way from the plan to pool and workers.

The planner chooses it with the groups. Until vLLM has made its configuration, each layer's spec
says it of its group. Then the configuration does, for the scheduler's pool and the workers'
tensors: specs are made anew in many places, and the two must never differ.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec, UniformTypeKVCacheSpecs

from mkv_ascend.layout.component import ONE_BLOCK, PageShape, are_blocks

_ATTRIBUTE = "mkv_ascend_page_shape"
_ID_BITS = 32

Planes = Sequence[torch.Tensor]


def with_shape(spec: Any, shape: PageShape) -> Any:
    """``spec``, or a copy that says how many blocks of its group a page holds."""
    if page_shape(spec) == shape:
        return spec
    shaped = copy.copy(spec)
    object.__setattr__(shaped, _ATTRIBUTE, shape)
    return shaped


def page_shape(spec: Any) -> PageShape:
    """How many blocks of this layer's group a page holds."""
    shape = getattr(spec, _ATTRIBUTE, ONE_BLOCK)
    assert isinstance(shape, PageShape)
    return shape


def first_spec(group: KVCacheGroupSpec) -> Any:
    """The spec of one layer of the group; of any stage's where this one has none."""
    spec = group.kv_cache_spec
    if not isinstance(spec, UniformTypeKVCacheSpecs):
        return spec
    own = [spec.kv_cache_specs[name] for name in group.layer_names[:1]]
    return next(iter([*own, *spec.kv_cache_specs.values()]), None)


@dataclass
class KVCacheConfigOfPages(KVCacheConfig):
    """vLLM's configuration with the shape of each layer's group.

    A field, since adapters and hosts make configurations anew by ``dataclasses.replace``; by layer,
    since some of these have fewer groups.
    """

    page_shapes: dict[str, PageShape] = field(default_factory=dict)


def with_page_shapes(config: KVCacheConfig, shapes: Sequence[PageShape]) -> KVCacheConfig:
    """``config`` with the shape of each group."""
    told = {one.name: getattr(config, one.name) for one in fields(config)}
    by_layer = {
        name: shape
        for group, shape in zip(config.kv_cache_groups, shapes, strict=True)
        for name in group.layer_names
    }
    return KVCacheConfigOfPages(**told, page_shapes=by_layer)


def page_shapes_of(kv_cache_config: KVCacheConfig) -> tuple[PageShape, ...]:
    """The shape of each group; one block to a page where nothing was said."""
    groups = kv_cache_config.kv_cache_groups
    if not (said := getattr(kv_cache_config, "page_shapes", {})):
        return (ONE_BLOCK,) * len(groups)
    return tuple(
        said.get(group.layer_names[0], ONE_BLOCK)
        if group.layer_names
        else page_shape(first_spec(group))
        for group in groups
    )


def planes_of_groups(
    kv_cache_config: KVCacheConfig, specs: Sequence[Mapping[str, Any]], planes: Sequence[Planes]
) -> Sequence[Planes]:
    """The planes of each group whose blocks are named; none of one without a layer here.

    Args:
        specs: by group and layer, of this worker.
        planes: of each group that has layers, or of all together (``Materialized.planes``).
    """
    if are_blocks(page_shapes_of(kv_cache_config)):
        return planes
    own = iter(planes if len(planes) == sum(map(bool, specs)) else itertools.repeat(planes[0]))
    return [next(own) if group else () for group in specs]


def named(group: int, block_id: int) -> int:
    """One number for a group's block, as the worker is told of it."""
    return (group << _ID_BITS) | block_id


def ids_by_group(names: Iterable[int]) -> dict[int, list[int]]:
    """The ids of named blocks, by their group."""
    found: dict[int, list[int]] = {}
    for name in names:
        found.setdefault(name >> _ID_BITS, []).append(name & (1 << _ID_BITS) - 1)
    return found
