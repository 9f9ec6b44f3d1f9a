# SPDX-License-Identifier: Apache-2.0
"""A bound plan as tensors: one allocation per pool, and the views that the backends take.

Where KV transfer asks for its alignment, each buffer is an allocation, as vllm-ascend makes them:
connectors take tensors of one storage for one cache (its offload to host memory would keep the
keys and drop the values).

The only module of this package that imports torch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from mkv_ascend.layout.bound import BlockPlane, BoundPlan, LayerViews, TensorView
from mkv_ascend.layout.component import Container
from mkv_ascend.layout.plan import BUFFER_ALIGNMENT

LayerCache = torch.Tensor | tuple[torch.Tensor, ...] | list[torch.Tensor]


@dataclass(frozen=True)
class Materialized:
    """``caches``: what each layer's backend takes, aliases included. ``raw``: the allocations as
    int8, aligned: one per pool, or one per buffer with KV transfer. ``planes``: int8 (blocks, bytes
    of a block) each, together every byte of every block once; for all groups, or for each group
    where it has blocks of its own (``BoundPlan.block_planes``).
    """

    caches: dict[str, LayerCache]
    raw: tuple[torch.Tensor, ...]
    planes: tuple[tuple[torch.Tensor, ...], ...]


def materialize(bound: BoundPlan, device: torch.device) -> Materialized:
    """Allocate and view all caches of ``bound`` on ``device``; they start as zeros."""
    apart = bound.alignment > BUFFER_ALIGNMENT
    raw = {
        (pool, index): _allocate(size, bound.alignment, device)
        for pool in range(len(bound.pools))
        for index, size in enumerate(_allocation_sizes(bound, pool, apart))
    }

    def located(pool: int, buffer: int, offset: int) -> tuple[torch.Tensor, int]:
        """The allocation of a buffer, and the byte of it that is ``offset`` bytes into the pool."""
        buffer = buffer if apart else 0
        return raw[pool, buffer], offset - bound.buffer_start(pool, buffer)

    caches: dict[str, LayerCache] = {}
    for name, layer in bound.views().items():
        tensors = [
            _view(*located(view.pool, view.buffer, view.offset_bytes), view) for view in layer.views
        ]
        caches[name] = _contain(layer, tensors)
    for alias, owner in bound.aliases:
        caches[alias] = caches[owner]

    def bytes_of(plane: BlockPlane) -> torch.Tensor:
        memory, start = located(plane.pool, plane.buffer, plane.offset_bytes)
        size = plane.block_bytes * plane.blocks
        return memory[start : start + size].view(plane.blocks, plane.block_bytes)

    planes = tuple(tuple(map(bytes_of, group)) for group in bound.block_planes())
    return Materialized(caches, tuple(raw.values()), planes)


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


def _view(raw: torch.Tensor, start: int, view: TensorView) -> torch.Tensor:
    dtype: torch.dtype = getattr(torch, view.dtype)
    last = sum((size - 1) * stride for size, stride in zip(view.shape, view.strides, strict=True))
    end = start + (last + 1) * dtype.itemsize
    return raw[start:end].view(dtype).as_strided(view.shape, view.strides)


def _contain(layer: LayerViews, tensors: list[torch.Tensor]) -> LayerCache:
    container = layer.layout.container
    if container is Container.TENSOR:
        return tensors[0]
    return tuple(tensors) if container is Container.TUPLE else tensors
