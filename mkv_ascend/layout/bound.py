# SPDX-License-Identifier: Apache-2.0
"""A plan with a number of blocks: the size of each buffer and every tensor as integers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from mkv_ascend.layout.component import Component, LayerLayout, LayoutError, exact_quotient
from mkv_ascend.layout.page_shape import PageShape, are_blocks
from mkv_ascend.layout.placement import PlacedLayer, Placement, Pool


@dataclass(frozen=True)
class TensorView:
    """One tensor: ``strides`` in elements, ``offset_bytes`` from the start of its buffer.

    ``buffer``: which of the plan's buffers the tensor lies in. Block b has rows
    ``b * rows_per_block`` and the ``rows_per_block - 1`` after it.
    """

    component: str
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    buffer: int
    offset_bytes: int
    rows_per_block: int


@dataclass(frozen=True)
class BlockPlane:
    """Bytes of ``blocks`` blocks one after another: those of block b are ``block_bytes`` from
    ``offset_bytes + b * block_bytes`` on, counted from the start of the buffer.
    """

    buffer: int
    offset_bytes: int
    block_bytes: int
    blocks: int


@dataclass(frozen=True)
class LayerViews:
    """All tensors of one layer, in the order of its components."""

    layout: LayerLayout
    views: tuple[TensorView, ...]


@dataclass(frozen=True)
class BoundPlan:
    """See ``CachePlan.bind``; all that memory allocation needs.

    ``num_blocks``: pages. ``shapes``: blocks in a page, by KV group.
    """

    layers: tuple[LayerLayout, ...]
    pools: tuple[Pool, ...]
    alignment: int
    aliases: tuple[tuple[str, str], ...]
    num_blocks: int
    shapes: tuple[PageShape, ...]

    def __post_init__(self) -> None:
        if self.num_blocks < 1:
            raise LayoutError(f"{self.num_blocks} blocks; a plan needs at least 1")

    @property
    def buffers(self) -> tuple[int, ...]:
        """Bytes of each buffer of all pools, without what aligns its start."""
        return tuple(size * self.num_blocks for pool in self.pools for size in pool.buffers)

    @property
    def total_bytes(self) -> int:
        """Bytes of all buffers."""
        return sum(self.buffers)

    @property
    def bytes_per_block(self) -> int:
        """Bytes of one page, whichever KV group holds it."""
        return sum(pool.bytes_per_block for pool in self.pools)

    def groups(self) -> list[list[LayerLayout]]:
        """The layouts of each KV group."""
        group_of = {member.layer: member.group for pool in self.pools for member in pool.layers}
        groups: list[list[LayerLayout]] = [
            [] for _ in range(1 + max(group_of.values(), default=-1))
        ]
        for layout in self.layers:
            groups[group_of[layout.layer]].append(layout)
        return groups

    def views(self) -> dict[str, LayerViews]:
        """Tensors by layer, aliases not included, in the order of the plan's layers."""
        layouts = {layout.layer: layout for layout in self.layers}
        placed: dict[str, LayerViews] = {}
        for first, member in self._placed():
            placed[member.layer] = self._layer(first, layouts[member.layer], member)
        return {layout.layer: placed[layout.layer] for layout in self.layers}

    @property
    def shares_pages(self) -> bool:
        """Whether ids of blocks are a group's own."""
        return not are_blocks(self.shapes)

    def block_planes(self) -> tuple[tuple[BlockPlane, ...], ...]:
        """Planes that together have every byte of a block once, by whose ids they are.

        One entry for all groups where a block of one is a block of all, else one for each group.
        """
        if not self.shares_pages:
            buffers = (
                BlockPlane(buffer, 0, size // self.num_blocks, self.num_blocks)
                for buffer, size in enumerate(self.buffers)
            )
            return (tuple(buffers),)
        return tuple(self._planes_of_group(group) for group in range(len(self.shapes)))

    def _planes_of_group(self, group: int) -> tuple[BlockPlane, ...]:
        blocks = self.num_blocks * self.shapes[group].blocks
        # Components of one page are of one plane.
        found = {
            BlockPlane(
                first + part.buffer,
                part.start_per_block * self.num_blocks,
                part.block_stride,
                blocks,
            ): None
            for first, member in self._placed()
            if member.group == group
            for part in member.placements
        }
        return tuple(found)

    def _placed(self) -> Iterator[tuple[int, PlacedLayer]]:
        """Each layer with the number of its pool's first buffer."""
        first = 0
        for pool in self.pools:
            yield from ((first, member) for member in pool.layers)
            first += len(pool.buffers)

    def _layer(self, first: int, layout: LayerLayout, member: PlacedLayer) -> LayerViews:
        pairs = zip(layout.components, member.placements, strict=True)
        blocks = self.num_blocks * self.shapes[member.group].blocks
        views = (self._view(first, layout, part, placement, blocks) for part, placement in pairs)
        return LayerViews(layout, tuple(views))

    def _view(
        self, first: int, layout: LayerLayout, part: Component, placement: Placement, blocks: int
    ) -> TensorView:
        row_shape = part.row_shape(layout.kernel_block)
        row_stride = exact_quotient(
            placement.row_stride, part.item_bytes, f"{layout.layer}, {part.name}: stride by element"
        )
        inner = tuple(math.prod(row_shape[axis + 1 :]) for axis in range(len(row_shape)))
        return TensorView(
            component=part.name,
            dtype=part.dtype,
            shape=(blocks * placement.rows, *row_shape),
            strides=(row_stride, *inner),
            buffer=first + placement.buffer,
            offset_bytes=placement.start_per_block * self.num_blocks + placement.start_bytes,
            rows_per_block=placement.rows,
        )
