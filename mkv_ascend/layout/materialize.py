# SPDX-License-Identifier: Apache-2.0
"""A bound plan as tensors: one allocation per buffer, and the views that the backends take.

Where a page is a block, that is one for each component, as vllm-ascend makes them and KV connectors
take them: of tensors of one storage its offload to host memory would keep the keys and drop the
values.

The only module of this package that imports torch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from mkv_ascend.layout.component import Container
from mkv_ascend.layout.plan import BUFFER_ALIGNMENT, BoundPlan, TensorView

LayerCache = torch.Tensor | tuple[torch.Tensor, ...] | list[torch.Tensor]


@dataclass(frozen=True)
class Materialized:
    """``caches``: what each layer's backend takes, aliases included. ``raw``: the buffers as int8,
    aligned. ``planes``: int8 (blocks, bytes of a block) each, together every byte of every block
    once; for all groups, or for each group where it has blocks of its own
    (``BoundPlan.block_planes``).
    """

    caches: dict[str, LayerCache]
    raw: tuple[torch.Tensor, ...]
    planes: tuple[tuple[torch.Tensor, ...], ...]


def materialize(bound: BoundPlan, device: torch.device) -> Materialized:
    """Allocate and view all caches of ``bound`` on ``device``; they start as zeros."""
    raw = tuple(_allocate(size, bound.alignment, device) for size in bound.buffers)
    caches: dict[str, LayerCache] = {}
    for name, layer in bound.views().items():
        tensors = [_view(raw[view.buffer], view) for view in layer.views]
        container = layer.layout.container
        if container is Container.TENSOR:
            caches[name] = tensors[0]
        else:
            caches[name] = tuple(tensors) if container is Container.TUPLE else tensors
    for alias, owner in bound.aliases:
        caches[alias] = caches[owner]
    planes = bound.block_planes()
    views = tuple(tuple(_view(raw[view.buffer], view) for view in group) for group in planes)
    return Materialized(caches, raw, views)


def _allocate(size: int, alignment: int, device: torch.device) -> torch.Tensor:
    """So many bytes, starting at a multiple of the plan's alignment."""
    if alignment <= BUFFER_ALIGNMENT:
        return torch.zeros(size, dtype=torch.int8, device=device)
    memory = torch.zeros(size + alignment, dtype=torch.int8, device=device)
    start = -memory.data_ptr() % alignment
    return memory[start : start + size]


def _view(raw: torch.Tensor, view: TensorView) -> torch.Tensor:
    dtype: torch.dtype = getattr(torch, view.dtype)
    last = sum((size - 1) * stride for size, stride in zip(view.shape, view.strides, strict=True))
    end = view.offset_bytes + (last + 1) * dtype.itemsize
    return raw[view.offset_bytes : end].view(dtype).as_strided(view.shape, view.strides)
