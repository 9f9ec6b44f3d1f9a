# SPDX-License-Identifier: Apache-2.0
"""Which layers of different KV groups share bytes, and where their components lie.

A pool has one or more buffers, each an allocation with the same number of bytes for every page.
With N pages, block b of a component starts at

    N * start_per_block + start_bytes + b * block_stride

of its buffer: a plane starts after the planes before it (N times their bytes), a component of a
page after the components before it. A page is one block of every group, or k * S of a group's own
(``PageShape``): block ``(s * N + page) * k + j`` lies in the page's stretch of the plane s planes
behind the first. So the formula above holds for any k and S, and each component is one contiguous
tensor.

A page belongs to one KV group at a time, so layers of different groups may use the same bytes of
it. A *plane* is so many bytes of each page, page behind page. Components of one size lie in planes
of one width, whatever group they are of; of each width there are as many planes as the group that
needs the most of them has components. A page of a layer whose operators take strides is one
component there. Packed pages of all sizes share a row for each page, as long as those of the
largest group. Nothing here needs to be believed: the plan proves the result.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mkv_ascend.layout.component import (
    ROW_ALIGNMENT,
    Component,
    LayerLayout,
    LayoutError,
    PageShape,
    Storage,
    are_blocks,
    exact_quotient,
)

Groups = Sequence[Sequence[LayerLayout]]


@dataclass(frozen=True)
class Placement:
    """One component: all numbers in bytes but ``buffer`` (an index) and ``rows`` (a count).

    A block has ``rows`` rows (kernel blocks times replicas) of ``row_bytes`` each, ``row_stride``
    apart; rows follow each other without a gap but in PAGED and PACKED storage. ``overlay``: a
    second view of bytes that other components of the layer have.
    """

    component: str
    buffer: int
    start_per_block: int
    start_bytes: int
    block_stride: int
    rows: int
    row_stride: int
    row_bytes: int
    overlay: bool = False

    def planes(self, shape: PageShape) -> Iterator[tuple[int, int]]:
        """First byte per page of each of its planes, and the one behind the last."""
        width = shape.per_stretch * self.block_stride
        for stretch in range(shape.stretches):
            start = self.start_per_block + stretch * width
            yield start, start + width


@dataclass(frozen=True)
class PlacedLayer:
    """One layer of a pool; ``group`` is the index of its KV group."""

    layer: str
    group: int
    placements: tuple[Placement, ...]


@dataclass(frozen=True)
class Pool:
    """Buffers, and the layers that share them.

    ``buffers``: bytes per page of each. A SPLIT pool has one for each plane, or for all planes of
    one width where a page holds several blocks; a PACKED pool has one.
    """

    storage: Storage
    reason: str
    buffers: tuple[int, ...]
    layers: tuple[PlacedLayer, ...]

    @property
    def bytes_per_block(self) -> int:
        return sum(self.buffers)


def make_pools(groups: Groups, shapes: Sequence[PageShape]) -> tuple[Pool, ...]:
    """The pools of ``groups``: of planes, and of packed pages.

    ``groups``: layouts in the order of execution, for each KV group. ``shapes``: of each group.
    """
    packed = [[x for x in group if x.storage is Storage.PACKED] for group in groups]
    others = [[x for x in group if x.storage is not Storage.PACKED] for group in groups]
    pools = []
    if any(others):
        pools.append(_planes(others, shapes))
    if any(packed):
        pools.append(_row(packed, shapes))
    return tuple(pools)


def page_bytes(groups: Groups, shapes: Sequence[PageShape]) -> int:
    return sum(pool.bytes_per_block for pool in make_pools(groups, shapes))


def _planes(groups: Groups, shapes: Sequence[PageShape]) -> Pool:
    """Planes by width: as many as the group with the most of them needs.

    Where a page is a block, each plane is a buffer, and so each component has a tensor of its own,
    which KV connectors need. Where it has several, a component may take several planes, which must
    be neighbours.
    """
    most: Counter[int] = Counter()
    for group, shape in zip(groups, shapes, strict=True):
        needed: Counter[int] = Counter()
        for size in (size for layout in group for size in _sizes_in_planes(layout)):
            needed[size * shape.per_stretch] += shape.stretches
        most |= needed
    apart = are_blocks(shapes)
    first: dict[int, int] = {}
    buffers: list[int] = []
    for width, number in sorted(most.items()):
        first[width] = len(buffers)
        buffers += [width] * number if apart else [width * number]
    placed = []
    for index, (group, shape) in enumerate(zip(groups, shapes, strict=True)):
        taken: Counter[int] = Counter()
        for layout in group:
            starts = []
            for size in _sizes_in_planes(layout):
                width = size * shape.per_stretch
                plane = taken[width]
                starts.append((first[width] + plane, 0) if apart else (first[width], plane * width))
                taken[width] += shape.stretches
            placements = _in_planes(layout, starts)
            placed.append(PlacedLayer(layout.layer, index, tuple(placements)))
    reason = "each component has a buffer, which one of every group may use"
    if not apart:
        reason = "a page holds several blocks of a group; planes of one width lie in one buffer"
    return Pool(Storage.SPLIT, reason, tuple(buffers), tuple(placed))


def _sizes_in_planes(layout: LayerLayout) -> list[int]:
    """Bytes of a block in each of the planes that the layer takes."""
    if layout.storage is Storage.PAGED:
        return [layout.page_bytes]
    return [part.bytes_per_block for part in layout.components]


def _in_planes(layout: LayerLayout, starts: Sequence[tuple[int, int]]) -> Iterator[Placement]:
    """Each component in its plane, or those of a page row after row in the page's.

    ``starts``: buffer, and first byte per page, of each plane.
    """
    is_page = layout.storage is Storage.PAGED
    at = 0
    for index, part in enumerate(layout.components):
        buffer, plane = starts[0 if is_page else index]
        rows = part.rows_per_block(layout.kernel_block)
        row = exact_quotient(part.bytes_per_block, rows, f"{part.name}: bytes by kernel blocks")
        block, start, stride = part.bytes_per_block, 0, row
        if is_page:
            block, start = layout.page_bytes, 0 if part.overlay else at
            exact_quotient(start, part.item_bytes, f"{layout.layer}, {part.name}: start by element")
            what = f"{layout.layer}: bytes of a block by kernel blocks"
            stride = exact_quotient(block, layout.kernel_splits, what)
            at += 0 if part.overlay else row
        yield Placement(part.name, buffer, plane, start, block, rows, stride, row, part.overlay)


def _row(groups: Groups, shapes: Sequence[PageShape]) -> Pool:
    """A row for each page, as long as the packed pages of the group with the most need.

    Blocks of a page are equally far apart, and kernel blocks of a block, in every group. In a
    kernel block those of a group's layers lie one behind the other, as often as a block has some.
    """
    needed, unit = 0, ROW_ALIGNMENT
    for group, shape in zip(groups, shapes, strict=True):
        if not group:
            continue
        splits = _equal_splits(group)
        unit = math.lcm(unit, ROW_ALIGNMENT * splits * shape.blocks)
        block = splits * sum(_aligned(size) for x in group for _, size in _kernel_parts(x))
        needed = max(needed, block * shape.blocks)
    row = -(-needed // unit) * unit
    placed = []
    for index, group in enumerate(groups):
        start = 0
        block = row // shapes[index].blocks
        for layout in group:
            splits = layout.kernel_splits
            stride = exact_quotient(block, splits, f"{layout.layer}: bytes of a row")
            placements = []
            for part, size in _kernel_parts(layout):
                placements.append(Placement(part.name, 0, 0, start, block, splits, stride, size))
                start += _aligned(size)
            placed.append(PlacedLayer(layout.layer, index, tuple(placements)))
    reason = "the operators take any stride: a block is a row of pages"
    return Pool(Storage.PACKED, reason, (row,), tuple(placed))


def _equal_splits(group: Sequence[LayerLayout]) -> int:
    """Kernel blocks of a block, which one block table has of one size."""
    splits = {layout.kernel_splits for layout in group}
    if len(splits) > 1:
        raise LayoutError(
            f"packed layers of one KV group split blocks into {sorted(splits)} kernel blocks; "
            "layers of one block table split them alike"
        )
    return max(splits)


def _kernel_parts(layout: LayerLayout) -> list[tuple[Component, int]]:
    """Each component with the bytes of its kernel block."""
    return [
        (part, exact_quotient(part.bytes_per_block, layout.kernel_splits, f"{part.name}: bytes"))
        for part in layout.components
    ]


def _aligned(size: int) -> int:
    return -(-size // ROW_ALIGNMENT) * ROW_ALIGNMENT
