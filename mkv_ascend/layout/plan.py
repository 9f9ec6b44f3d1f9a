# SPDX-License-Identifier: Apache-2.0
"""The plan of all KV caches of a process: groups, pools and offsets, proven when it is made.

A plan does not depend on the number of blocks: memory profiling decides that later, and
``CachePlan.bind`` then gives integers for every tensor. A plan is a value: compare it, hash it.
None can exist that lets two blocks share a byte: making one proves it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from mkv_ascend.layout.component import (
    ONE_BLOCK,
    LayerLayout,
    LayoutError,
    PageShape,
    are_blocks,
    exact_quotient,
)
from mkv_ascend.layout.pooling import PlacedLayer, Pool, make_pools
from mkv_ascend.layout.proof import prove_pool

BUFFER_ALIGNMENT = 512
"""Bytes; what a tensor of its own gets from torch_npu's allocator, as from CUDA's."""
TRANSFER_ALIGNMENT = 2 * 1024 * 1024
"""Bytes; vllm-ascend aligns raw caches to 2 MiB where a KV connector registers them."""


@dataclass(frozen=True)
class KVGroup:
    """Layers that share one block table, in the order of execution.

    ``tokens_per_block``: tokens of a request per block. ``kernel_block``: rows of the block that
    the block table is split into, None where no layer splits. ``shape``: blocks in a page.
    """

    layers: tuple[str, ...]
    tokens_per_block: int
    kernel_block: int | None
    shape: PageShape = ONE_BLOCK


@dataclass(frozen=True)
class GroupCapacity:
    """What a page of a group's blocks holds, in bytes; any page costs ``total_bytes``."""

    used_bytes: int
    total_bytes: int

    @property
    def idle_bytes(self) -> int:
        """Bytes of other groups' planes that lie idle while a page belongs to this group."""
        return self.total_bytes - self.used_bytes


@dataclass(frozen=True)
class CachePlan:
    """Make one with ``make_plan``; LayoutError (OverlapError) when it cannot be.

    ``alignment``: bytes that each buffer starts at a multiple of. ``aliases``: (layer, owner)
    pairs, layers without a cache that read the owner's.
    """

    layers: tuple[LayerLayout, ...]
    groups: tuple[KVGroup, ...]
    pools: tuple[Pool, ...]
    alignment: int = BUFFER_ALIGNMENT
    aliases: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        grouped = Counter(layer for group in self.groups for layer in group.layers)
        wrong = sorted(name for name in {*self.layout_of, *grouped} if grouped[name] != 1)
        if wrong:
            raise LayoutError(f"layers that are not exactly once in the KV groups: {wrong}")
        for layer, owner in self.aliases:
            if layer in self.layout_of or owner not in self.layout_of:
                raise LayoutError(
                    f"{layer} is to read the cache of {owner}: the first must have none of its "
                    "own, the second must have one"
                )
        for index, group in enumerate(self.groups):
            self._check_group(index, group)
        for index, pool in enumerate(self.pools):
            prove_pool(index, pool, self.shapes)

    @cached_property
    def layout_of(self) -> Mapping[str, LayerLayout]:
        return {layout.layer: layout for layout in self.layers}

    @cached_property
    def group_of(self) -> Mapping[str, int]:
        return {layer: index for index, group in enumerate(self.groups) for layer in group.layers}

    @cached_property
    def shapes(self) -> tuple[PageShape, ...]:
        """Blocks in a page, by KV group."""
        return tuple(group.shape for group in self.groups)

    @property
    def bytes_per_block(self) -> int:
        """Bytes of one page over all pools: of one block id where a page is a block."""
        return sum(pool.bytes_per_block for pool in self.pools)

    def layouts_by_group(self) -> list[list[LayerLayout]]:
        return [[self.layout_of[name] for name in group.layers] for group in self.groups]

    def tied_layers(self) -> list[tuple[int, list[str]]]:
        """Layers that have buffers in common, or by way of others; with the bytes of a page there.

        vLLM's name for such a set is a KV cache tensor.
        """
        found: list[tuple[set[tuple[int, int]], list[str]]] = []
        for index, pool in enumerate(self.pools):
            for member in pool.layers:
                buffers = {(index, part.buffer) for part in member.placements}
                layers: list[str] = []
                for others in [one for one in found if one[0] & buffers]:
                    found.remove(others)
                    buffers |= others[0]
                    layers += others[1]
                found.append((buffers, [*layers, member.layer]))
        sizes = [pool.buffers for pool in self.pools]
        return [(sum(sizes[pool][one] for pool, one in tied), names) for tied, names in found]

    @property
    def overhead_bytes(self) -> int:
        """The most bytes that aligning all buffers can cost, for any number of blocks."""
        return self.alignment * sum(len(pool.buffers) for pool in self.pools)

    def num_blocks_in(self, memory_bytes: int) -> int:
        """Blocks that fit into ``memory_bytes``; may be 0.

        Alignment for KV transfer is taken off. That of the allocator is not, at most 512 bytes a
        buffer: it is no part of what memory profiling hands out.
        """
        taken = self.overhead_bytes if self.alignment > BUFFER_ALIGNMENT else 0
        return max(memory_bytes - taken, 0) // self.bytes_per_block

    def bind(self, num_blocks: int) -> BoundPlan:
        """The plan for ``num_blocks`` pages: sizes of buffers, shapes, strides, offsets."""
        return BoundPlan(
            self.layers, self.groups, self.pools, self.alignment, self.aliases, num_blocks
        )

    def capacity(self) -> tuple[GroupCapacity, ...]:
        return tuple(
            GroupCapacity(shape.blocks * sum(x.used_bytes for x in layouts), self.bytes_per_block)
            for layouts, shape in zip(self.layouts_by_group(), self.shapes, strict=True)
        )

    def _check_group(self, index: int, group: KVGroup) -> None:
        for layer in group.layers:
            layout = self.layout_of[layer]
            if layout.tokens_per_block != group.tokens_per_block:
                raise LayoutError(
                    f"KV group {index} has blocks of {group.tokens_per_block} tokens, {layer} of "
                    f"{layout.tokens_per_block}; give it a group of its own or that block size"
                )
            if layout.kernel_block not in (None, group.kernel_block) and (
                # Of all ranks' tokens, in a block that stands for those of one.
                layout.kernel_splits * (group.kernel_block or 0) != group.tokens_per_block
            ):
                raise LayoutError(
                    f"KV group {index} splits blocks into {group.kernel_block} rows, {layer} into "
                    f"{layout.kernel_block}; one block table cannot serve both"
                )


def make_plan(
    groups: Sequence[Sequence[LayerLayout]],
    *,
    shapes: Sequence[PageShape] = (),
    kv_transfer: bool = False,
    aliases: Mapping[str, str] | None = None,
) -> CachePlan:
    """The plan of these KV groups, each given as its layers' layouts in the order of execution.

    ``shapes``: blocks in a page, by group; none where a page is one block of every group.
    ``kv_transfer`` aligns every buffer to 2 MiB. ``aliases`` maps layers without a cache to the
    layers whose cache they read.
    Raises LayoutError with the numbers when something does not divide or fit.
    """
    shapes = shapes or [ONE_BLOCK] * len(groups)
    return CachePlan(
        layers=tuple(layout for group in groups for layout in group),
        groups=tuple(_group(group, shape) for group, shape in zip(groups, shapes, strict=True)),
        pools=make_pools(groups, shapes),
        alignment=TRANSFER_ALIGNMENT if kv_transfer else BUFFER_ALIGNMENT,
        aliases=tuple(sorted((aliases or {}).items())),
    )


def _group(layouts: Sequence[LayerLayout], shape: PageShape) -> KVGroup:
    if not layouts:
        raise LayoutError("a KV group without layers; leave it out")
    kernel_blocks = (layout.kernel_block for layout in layouts if layout.kernel_block is not None)
    return KVGroup(
        layers=tuple(layout.layer for layout in layouts),
        tokens_per_block=layouts[0].tokens_per_block,
        kernel_block=next(kernel_blocks, None),
        shape=shape,
    )


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
class LayerViews:
    """All tensors of one layer, in the order of its components."""

    layout: LayerLayout
    views: tuple[TensorView, ...]


@dataclass(frozen=True)
class BoundPlan(CachePlan):
    """A plan with a number of pages (``CachePlan.bind``): all that memory allocation needs."""

    num_blocks: int = 0

    def __post_init__(self) -> None:
        """The plan itself was proven before."""
        if self.num_blocks < 1:
            raise LayoutError(f"{self.num_blocks} blocks; a plan needs at least 1")

    @property
    def buffers(self) -> tuple[int, ...]:
        """Bytes of each buffer of all pools, without what aligns its start."""
        return tuple(size * self.num_blocks for pool in self.pools for size in pool.buffers)

    @property
    def total_bytes(self) -> int:
        return sum(self.buffers)

    def views(self) -> dict[str, LayerViews]:
        """Tensors by layer, aliases not included, in the order of the plan's layers."""
        found: dict[str, LayerViews] = {}
        for first, member in self._placed():
            layout = self.layout_of[member.layer]
            blocks = self.num_blocks * self.shapes[member.group].blocks
            views = []
            for part, placement in zip(layout.components, member.placements, strict=True):
                what = f"{layout.layer}, {part.name}: stride by element"
                stride = exact_quotient(placement.row_stride, part.item_bytes, what)
                row = part.row_shape(layout.kernel_block)
                offset = placement.start_per_block * self.num_blocks + placement.start_bytes
                views.append(
                    TensorView(
                        component=part.name,
                        dtype=part.dtype,
                        shape=(blocks * placement.rows, *row),
                        strides=(stride, *(math.prod(row[n + 1 :]) for n in range(len(row)))),
                        buffer=first + placement.buffer,
                        offset_bytes=offset,
                        rows_per_block=placement.rows,
                    )
                )
            found[layout.layer] = LayerViews(layout, tuple(views))
        return {layout.layer: found[layout.layer] for layout in self.layers}

    def block_planes(self) -> tuple[tuple[TensorView, ...], ...]:
        """Planes (blocks, bytes of a block), together every byte of a block once, by whose ids.

        One entry for all groups where a block of one is a block of all, else one for each group.
        """
        if are_blocks(self.shapes):
            buffers = (
                _plane(self.num_blocks, size // self.num_blocks, buffer, 0)
                for buffer, size in enumerate(self.buffers)
            )
            return (tuple(buffers),)
        # Components of one page are of one plane.
        found: list[dict[TensorView, None]] = [{} for _ in self.groups]
        for first, member in self._placed():
            blocks = self.num_blocks * self.shapes[member.group].blocks
            for part in member.placements:
                start = part.start_per_block * self.num_blocks
                plane = _plane(blocks, part.block_stride, first + part.buffer, start)
                found[member.group][plane] = None
        return tuple(map(tuple, found))

    def _placed(self) -> Iterator[tuple[int, PlacedLayer]]:
        """Each layer with the number of its pool's first buffer."""
        first = 0
        for pool in self.pools:
            yield from ((first, member) for member in pool.layers)
            first += len(pool.buffers)


def _plane(blocks: int, size: int, buffer: int, offset_bytes: int) -> TensorView:
    return TensorView("", "int8", (blocks, size), (size, 1), buffer, offset_bytes, 1)
