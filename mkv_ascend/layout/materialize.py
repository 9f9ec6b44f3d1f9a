# SPDX-License-Identifier: Apache-2.0
"""A bound plan as tensors: one allocation per pool, and the views that the backends take.

Where KV transfer asks for its alignment, each buffer is an allocation, as vllm-ascend makes them:
connectors take tensors of one storage for one cache (its offload to host memory would keep the
keys and drop the values).

The only module of this room that imports torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from mkv_ascend.layout.bound import BoundPlan, LayerViews, TensorView
from mkv_ascend.layout.component import Container, LayoutError, MemoryFormat
from mkv_ascend.layout.plan import BUFFER_ALIGNMENT

__all__ = ["LayerCache", "Materialized", "materialize"]

LayerCache = torch.Tensor | tuple[torch.Tensor, ...] | list[torch.Tensor]
EmptyInFormat = Callable[[tuple[int, ...], torch.dtype, torch.device], torch.Tensor]


@dataclass(frozen=True)
class Materialized:
    """``caches``: what each layer's backend takes, aliases included. ``side``: tensors beside them,
    by layer and component. ``raw``: the allocations as int8, aligned: one per pool, or one per
    buffer with KV transfer; None for a pool in NZ format, which has an allocation per tensor.
    ``planes``: int8 (num_blocks, bytes of a block) each, together every byte of every block once,
    those of pools in NZ format left out.
    """

    caches: dict[str, LayerCache]
    side: dict[str, dict[str, torch.Tensor]]
    raw: tuple[torch.Tensor | None, ...]
    planes: tuple[torch.Tensor, ...]


def materialize(
    bound: BoundPlan, device: torch.device, *, empty_in_nz: EmptyInFormat | None = None
) -> Materialized:
    """Allocate and view all caches of ``bound`` on ``device``; ND caches start as zeros.

    ``empty_in_nz`` makes a tensor in NZ format; LayoutError where one is needed and it is None.
    """
    views = bound.views()
    in_nz = {
        view.pool
        for layer in views.values()
        for view in layer.views
        if layer.layout.memory_format is MemoryFormat.NZ
    }
    apart = bound.alignment > BUFFER_ALIGNMENT
    raw: dict[tuple[int, int], torch.Tensor | None] = {}
    for pool in range(len(bound.pools)):
        for index, size in enumerate(_allocation_sizes(bound, pool, apart)):
            in_format = pool in in_nz
            raw[pool, index] = None if in_format else _allocate(size, bound.alignment, device)
    formatted: dict[tuple[int, int], torch.Tensor] = {}
    caches: dict[str, LayerCache] = {}
    side: dict[str, dict[str, torch.Tensor]] = {}
    for name, layer in views.items():
        tensors = []
        for view in layer.views:
            buffer = view.buffer if apart else 0
            memory = raw[view.pool, buffer]
            if memory is not None:
                start = bound.buffer_start(view.pool, buffer)
                tensors.append(_view(memory, view, view.offset_bytes - start))
                continue
            # Layers that share the plane share the tensor.
            place = (view.pool, view.offset_bytes)
            if place not in formatted:
                formatted[place] = _in_nz(view, device, empty_in_nz)
            tensors.append(_same_shape(name, formatted[place], view))
        caches[name] = _contain(layer, tensors)
        extra = {v.component: t for v, t in zip(layer.views, tensors, strict=True) if v.side}
        if extra:
            side[name] = extra
    for alias, owner in bound.aliases:
        caches[alias] = caches[owner]
    return Materialized(caches, side, tuple(raw.values()), _planes(bound, raw, apart))


def _planes(
    bound: BoundPlan, raw: dict[tuple[int, int], torch.Tensor | None], apart: bool
) -> tuple[torch.Tensor, ...]:
    planes = []
    for plane in bound.block_planes():
        buffer = plane.buffer if apart else 0
        memory = raw[plane.pool, buffer]
        if memory is None:
            continue
        start = plane.offset_bytes - bound.buffer_start(plane.pool, buffer)
        size = plane.block_bytes * bound.num_blocks
        planes.append(memory[start : start + size].view(bound.num_blocks, plane.block_bytes))
    return tuple(planes)


def _allocation_sizes(bound: BoundPlan, pool: int, apart: bool) -> list[int]:
    """Bytes of each allocation of a pool: one for each buffer where they lie apart."""
    if not apart:
        return [bound.allocation_bytes(pool)]
    return [bound.buffer_bytes(pool, index) for index in range(len(bound.pools[pool].buffers))]


def _allocate(size: int, alignment: int, device: torch.device) -> torch.Tensor:
    """So many bytes, starting at a multiple of the plan's alignment."""
    if alignment <= BUFFER_ALIGNMENT:
        return torch.zeros(size, dtype=torch.int8, device=device)
    memory = torch.zeros(size + alignment, dtype=torch.int8, device=device)
    start = -memory.data_ptr() % alignment
    return memory[start : start + size]


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype


def _view(raw: torch.Tensor, view: TensorView, start: int) -> torch.Tensor:
    dtype = _dtype(view.dtype)
    last = sum((size - 1) * stride for size, stride in zip(view.shape, view.strides, strict=True))
    end = start + (last + 1) * dtype.itemsize
    return raw[start:end].view(dtype).as_strided(view.shape, view.strides)


def _in_nz(view: TensorView, device: torch.device, empty: EmptyInFormat | None) -> torch.Tensor:
    if empty is None:
        raise LayoutError(
            f"{view.component} is in NZ format, and no way to make such a tensor was given: pass "
            "empty_in_nz"
        )
    return empty(view.shape, _dtype(view.dtype), device)


def _same_shape(layer: str, tensor: torch.Tensor, view: TensorView) -> torch.Tensor:
    """A tensor in NZ format cannot be viewed as another shape or dtype."""
    if tuple(tensor.shape) != view.shape or tensor.dtype is not _dtype(view.dtype):
        raise LayoutError(
            f"{layer}, {view.component}: {view.dtype} {view.shape} is to share a tensor in NZ "
            f"format with {tensor.dtype} {tuple(tensor.shape)}; give the layer a pool of its own"
        )
    return tensor


def _contain(layer: LayerViews, tensors: list[torch.Tensor]) -> LayerCache:
    bound = [t for view, t in zip(layer.views, tensors, strict=True) if not view.side]
    container = layer.layout.container
    if container is Container.TENSOR:
        return bound[0]
    return tuple(bound) if container is Container.TUPLE else bound
