# SPDX-License-Identifier: Apache-2.0
"""Which layers of different KV groups share bytes, and where their components lie.

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

from mkv_ascend.layout.component import Component, LayerLayout, LayoutError, Storage, exact_quotient
from mkv_ascend.layout.page_shape import PageShape, are_blocks
from mkv_ascend.layout.placement import ROW_ALIGNMENT, PlacedLayer, Placement, Pool

Groups = Sequence[Sequence[LayerLayout]]

Sizes = Counter[int]
"""How many planes of each width, in bytes of a page."""


def make_pools(groups: Groups, shapes: Sequence[PageShape]) -> tuple[Pool, ...]:
    """The pools of ``groups``: of planes, and of packed pages.

    ``groups``: layouts in the order of execution, for each KV group. ``shapes``: of each group.
    """
    planes = _Planes(_widths(groups, shapes), apart=are_blocks(shapes))
    placed = [
        placed
        for index, (group, shape) in enumerate(zip(groups, shapes, strict=True))
        for placed in _in_neighbouring_planes(group, index, shape, planes)
    ]
    pools = []
    if placed:
        pools.append(Pool(Storage.SPLIT, planes.reason, planes.buffers, tuple(placed)))
    if row := _row_bytes(groups, shapes):
        pools.append(_lay_row(groups, row, shapes))
    return tuple(pools)


def page_bytes(groups: Groups, shapes: Sequence[PageShape]) -> int:
    """Bytes of a page over all pools."""
    planes = _widths(groups, shapes)
    return sum(map(int.__mul__, planes.keys(), planes.values())) + _row_bytes(groups, shapes)


class _Planes:
    """The buffers of the planes: one for all of a width, or ``apart`` one for each.

    Where a page is a block, each component has a tensor of its own, which KV connectors need. Where
    it has several, a component may take several planes, which must be neighbours.
    """

    def __init__(self, planes: Sizes, *, apart: bool) -> None:
        self._apart = apart
        self._first: dict[int, int] = {}
        buffers: list[int] = []
        for width, number in sorted(planes.items()):
            self._first[width] = len(buffers)
            buffers += [width] * number if apart else [width * number]
        self.buffers = tuple(buffers)

    @property
    def reason(self) -> str:
        """Why they lie so, for reports."""
        if self._apart:
            return "each component has a buffer, which one of every group may use"
        return "a page holds several blocks of a group; planes of one width lie in one buffer"

    def located(self, width: int, plane: int) -> tuple[int, int]:
        """Buffer, and first byte per page, of the plane of this number."""
        first = self._first[width]
        return (first + plane, 0) if self._apart else (first, plane * width)


def _widths(groups: Groups, shapes: Sequence[PageShape]) -> Sizes:
    """Planes by width: as many as the group with the most of them needs. Without packed pages."""
    most: Sizes = Counter()
    for group, shape in zip(groups, shapes, strict=True):
        planes: Sizes = Counter()
        for layout in group:
            for size in _sizes_in_planes(layout):
                planes[size * shape.per_stretch] += shape.stretches
        most |= planes
    return most


def _sizes_in_planes(layout: LayerLayout) -> list[int]:
    """Bytes of a block in each of the planes that the layer takes."""
    if layout.storage is Storage.PACKED:
        return []
    if layout.storage is Storage.PAGED:
        return [layout.page_bytes]
    return [part.bytes_per_block for part in layout.components]


def _in_neighbouring_planes(
    group: Sequence[LayerLayout], index: int, shape: PageShape, planes: _Planes
) -> Iterator[PlacedLayer]:
    taken: Sizes = Counter()
    for layout in group:
        starts = []
        for size in _sizes_in_planes(layout):
            width = size * shape.per_stretch
            starts.append(planes.located(width, taken[width]))
            taken[width] += shape.stretches
        if layout.storage is Storage.PAGED:
            yield PlacedLayer(layout.layer, index, tuple(_in_page(layout, *starts[0])))
        elif starts:
            placements = (
                _in_plane(part, layout.kernel_block, *start)
                for part, start in zip(layout.components, starts, strict=True)
            )
            yield PlacedLayer(layout.layer, index, tuple(placements))


def _in_plane(part: Component, kernel_block: int | None, buffer: int, start: int) -> Placement:
    rows = part.rows_per_block(kernel_block)
    size = part.bytes_per_block
    row = exact_quotient(size, rows, f"{part.name}: bytes by kernel blocks")
    return Placement(part.name, buffer, start, 0, size, rows, row, row)


def _in_page(layout: LayerLayout, buffer: int, plane: int) -> Iterator[Placement]:
    """The components of a page, row after row, in the plane that starts at ``plane``."""
    what = f"{layout.layer}: bytes of a block by kernel blocks"
    page = layout.page_bytes
    stride = exact_quotient(page, layout.kernel_splits, what)
    start = 0
    for part in layout.components:
        rows = part.rows_per_block(layout.kernel_block)
        size = exact_quotient(part.bytes_per_block, rows, f"{part.name}: bytes by rows")
        at = 0 if part.overlay else start
        yield Placement(
            part.name, buffer, plane, at, page, rows, stride, size, overlay=part.overlay
        )
        start += 0 if part.overlay else size


def _packed(group: Sequence[LayerLayout]) -> list[LayerLayout]:
    return [layout for layout in group if layout.storage is Storage.PACKED]


def _row_bytes(groups: Groups, shapes: Sequence[PageShape]) -> int:
    """Bytes of a page's row: the packed pages of the group with the most; 0 without any.

    Blocks of a page are equally far apart, and kernel blocks of a block, in every group.
    """
    needed, unit = 0, ROW_ALIGNMENT
    for group, shape in zip(groups, shapes, strict=True):
        packed = _packed(group)
        for layout in packed:
            unit = math.lcm(unit, ROW_ALIGNMENT * layout.kernel_splits * shape.blocks)
        block = sum(_kernel_page(layout) * layout.kernel_splits for layout in packed)
        needed = max(needed, block * shape.blocks)
    return -(-needed // unit) * unit


def _kernel_page(layout: LayerLayout) -> int:
    """Bytes of a kernel block of a packed layer, with what aligns its components."""
    return sum(_aligned(size) for _, size in _kernel_parts(layout))


def _kernel_parts(layout: LayerLayout) -> list[tuple[Component, int]]:
    """Each component with the bytes of its kernel block."""
    return [
        (part, exact_quotient(part.bytes_per_block, layout.kernel_splits, f"{part.name}: bytes"))
        for part in layout.components
    ]


def _aligned(size: int) -> int:
    return -(-size // ROW_ALIGNMENT) * ROW_ALIGNMENT


def _require_equal_splits(layers: Sequence[LayerLayout]) -> None:
    """Kernel blocks of a group's layers lie side by side; one block table has one size of them."""
    splits = {layout.kernel_splits for layout in layers}
    if len(splits) > 1:
        raise LayoutError(
            f"packed layers of one KV group split blocks into {sorted(splits)} kernel blocks; "
            "layers of one block table split them alike"
        )


def _lay_row(groups: Groups, row: int, shapes: Sequence[PageShape]) -> Pool:
    """Kernel blocks of a group's layers one behind the other, as often as a block has some."""
    placed = []
    for index, group in enumerate(groups):
        start = 0
        block = row // shapes[index].blocks
        _require_equal_splits(_packed(group))
        for layout in _packed(group):
            stride = exact_quotient(block, layout.kernel_splits, f"{layout.layer}: bytes of a row")
            placements = []
            for part, size in _kernel_parts(layout):
                placements.append(
                    Placement(part.name, 0, 0, start, block, layout.kernel_splits, stride, size)
                )
                start += _aligned(size)
            placed.append(PlacedLayer(layout.layer, index, tuple(placements)))
    reason = "the operators take any stride: a block is a row of pages"
    return Pool(Storage.PACKED, reason, (row,), tuple(placed))
