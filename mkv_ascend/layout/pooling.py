# SPDX-License-Identifier: Apache-2.0
"""Which layers of different KV groups share a pool, and where their components lie in it.

A block id belongs to one KV group at a time, so layers of different groups may use the same bytes
of it. Contiguous components share a plane only when their blocks are equally large: then block b
of both is the same bytes. So a pool of contiguous layers is a set of planes, and a layer joins when
the pool has planes of its sizes, or is given those that lack. Pages share by page size. Packed
pages of all sizes share one pool: a row for each block, as long as the pages of the largest group.
Nothing here needs to be believed: the plan proves the result.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from mkv_ascend.layout.component import Component, LayerLayout, LayoutError, Storage, exact_quotient
from mkv_ascend.layout.page_shape import ONE_BLOCK, PageShape, are_blocks
from mkv_ascend.layout.placement import ROW_ALIGNMENT, PlacedLayer, Placement, Pool

Groups = Sequence[Sequence[LayerLayout]]

Sizes = Counter[int]
"""How many planes of each size, in bytes per block."""


@dataclass(eq=False)
class _Planes:
    """A pool of contiguous layers while it is being filled."""

    planes: list[int] = field(default_factory=list)
    members: list[tuple[LayerLayout, int]] = field(default_factory=list)


def _planes_of(layout: LayerLayout) -> Sizes:
    return Counter(part.bytes_per_block for part in layout.components)


def _weight(planes: Sizes) -> int:
    return sum(size * count for size, count in planes.items())


def _contiguous(group: Sequence[LayerLayout]) -> list[LayerLayout]:
    return [layout for layout in group if not layout.storage.is_strided]


def _contiguous_pools(groups: Groups) -> list[_Planes]:
    """As many planes of each size as the group with the most needs, and no more.

    Groups with the most bytes first: they open the pools that the others then fit into. A layer
    that finds its planes in several pools only makes one pool of them.
    """
    pools: list[_Planes] = []
    members = [_contiguous(group) for group in groups]
    order = sorted(
        range(len(groups)), key=lambda index: -sum(part.used_bytes for part in members[index])
    )
    for group in order:
        free = {pool: Counter(pool.planes) for pool in pools}
        for layout in members[group]:
            missing = _planes_of(layout)
            chosen = _choose(free, missing)
            for pool in chosen:
                missing -= free[pool]
            target = _merge(chosen, free, pools) or _open(free, pools)
            target.planes += missing.elements()
            target.members.append((layout, group))
            free[target] = free[target] + missing - _planes_of(layout)
    return pools


def _choose(free: dict[_Planes, Sizes], needed: Sizes) -> list[_Planes]:
    """Pools that together have most of ``needed`` free: one if one has, the fullest first."""
    chosen: list[_Planes] = []
    while needed:
        best, best_cost = None, (_weight(needed), 0)
        for pool, planes in free.items():
            if pool in chosen or not planes:
                continue
            cost = (_weight(needed - planes), _weight(planes))
            if cost < best_cost:
                best, best_cost = pool, cost
            if planes == needed:
                break
        if best is None:
            break
        chosen.append(best)
        needed = needed - free[best]
    return chosen


def _merge(
    chosen: list[_Planes], free: dict[_Planes, Sizes], pools: list[_Planes]
) -> _Planes | None:
    """The first of ``chosen`` with the planes and members of the others."""
    for other in chosen[1:]:
        chosen[0].planes += other.planes
        chosen[0].members += other.members
        free[chosen[0]] = free[chosen[0]] + free.pop(other)
        pools.remove(other)
    return chosen[0] if chosen else None


def _open(free: dict[_Planes, Sizes], pools: list[_Planes]) -> _Planes:
    pool = _Planes()
    pools.append(pool)
    free[pool] = Counter()
    return pool


@dataclass
class _Pages:
    """A pool of pages: ``width`` bytes per block, a layer of each group with that group."""

    width: int
    members: list[tuple[LayerLayout, int]] = field(default_factory=list)


def _paged_pools(groups: Groups) -> list[_Pages]:
    pools: dict[tuple[int, int], _Pages] = {}
    for group, layouts in enumerate(groups):
        seen: Counter[int] = Counter()
        for layout in layouts:
            if layout.storage is not Storage.PAGED:
                continue
            size = layout.page_bytes
            pool = pools.setdefault((size, seen[size]), _Pages(size))
            pool.members.append((layout, group))
            seen[size] += 1
    return list(pools.values())


def bytes_per_block(groups: Groups) -> int:
    """Bytes that one block id costs over all pools, where a page is a block."""
    most: Sizes = Counter()
    for group in groups:
        planes: Sizes = Counter()
        for layout in _contiguous(group):
            planes.update(_planes_of(layout))
        most |= planes
    pages = sum(pool.width for pool in _paged_pools(groups))
    return _weight(most) + pages + _row_bytes(groups)


def make_pools(groups: Groups) -> tuple[Pool, ...]:
    """The pools of ``groups``: layouts in the order of execution, for each KV group."""
    pools = [_lay_planes(pool) for pool in _contiguous_pools(groups)]
    pools += [_lay_pages(pool) for pool in _paged_pools(groups)]
    if row := _row_bytes(groups):
        pools.append(_lay_row(groups, row))
    return tuple(pools)


def make_shared_pools(groups: Groups, shapes: Sequence[PageShape]) -> tuple[Pool, ...]:
    """The pools of groups that have several blocks in a page each.

    Planes of one width lie in one buffer, as many as the group with the most of them needs. A
    group's components of that width take S neighbouring planes each, from the first on; pages of
    layers that take strides are one component there. Packed pages share one row, of which a block
    is a part.
    """
    widths = _widths(groups, shapes)
    buffers = {width: index for index, width in enumerate(sorted(widths))}
    placed = [
        placed
        for index, (group, shape) in enumerate(zip(groups, shapes, strict=True))
        for placed in _in_neighbouring_planes(group, index, shape, buffers)
    ]
    pools = []
    if placed:
        sizes = tuple(width * widths[width] for width in buffers)
        reason = "a page holds several blocks of a group; planes of one width lie in one buffer"
        pools.append(Pool(Storage.SPLIT, reason, sizes, tuple(placed)))
    if row := _row_bytes(groups, shapes):
        pools.append(_lay_row(groups, row, shapes))
    return tuple(pools)


def page_bytes(groups: Groups, shapes: Sequence[PageShape]) -> int:
    """Bytes of a page over all pools; ``bytes_per_block`` where a page is a block."""
    if are_blocks(shapes):
        return bytes_per_block(groups)
    return _weight(_widths(groups, shapes)) + _row_bytes(groups, shapes)


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
    group: Sequence[LayerLayout], index: int, shape: PageShape, buffers: Mapping[int, int]
) -> Iterator[PlacedLayer]:
    taken: Sizes = Counter()
    for layout in group:
        starts = []
        for size in _sizes_in_planes(layout):
            width = size * shape.per_stretch
            starts.append((buffers[width], taken[width] * width))
            taken[width] += shape.stretches
        if layout.storage is Storage.PAGED:
            yield PlacedLayer(layout.layer, index, tuple(_in_page(layout, *starts[0])))
        elif starts:
            placements = (
                _in_plane(part, layout.kernel_block, *start)
                for part, start in zip(layout.components, starts, strict=True)
            )
            yield PlacedLayer(layout.layer, index, tuple(placements))


def _lay_planes(pool: _Planes) -> Pool:
    storage, reason = _contiguous_storage(pool)
    sizes = pool.planes
    if storage is Storage.SPLIT:
        buffers = tuple(sizes)
        starts = [(index, 0) for index in range(len(sizes))]
    else:
        buffers = (sum(sizes),)
        starts = [(0, sum(sizes[:index])) for index in range(len(sizes))]
    return Pool(storage, reason, buffers, tuple(_place_all(pool, starts)))


def _contiguous_storage(pool: _Planes) -> tuple[Storage, str]:
    split = "the operators take contiguous components"
    if all(layout.storage is Storage.SPLIT for layout, _ in pool.members):
        return Storage.SPLIT, split
    if any(size % ROW_ALIGNMENT for size in pool.planes):
        return Storage.SPLIT, (
            f"{split}; in one buffer they would not start at multiples of {ROW_ALIGNMENT} bytes"
        )
    return Storage.PLANAR, f"{split}; those of a state lie in one buffer"


def _place_all(pool: _Planes, starts: list[tuple[int, int]]) -> Iterator[PlacedLayer]:
    """Each layer takes the first planes of its sizes that no layer of its group has."""
    taken: dict[int, set[int]] = {}
    for layout, group in pool.members:
        used = taken.setdefault(group, set())
        placements = []
        for part in layout.components:
            index = next(
                index
                for index, plane in enumerate(pool.planes)
                if plane == part.bytes_per_block and index not in used
            )
            used.add(index)
            placements.append(_in_plane(part, layout.kernel_block, *starts[index]))
        yield PlacedLayer(layout.layer, group, tuple(placements))


def _in_plane(part: Component, kernel_block: int | None, buffer: int, start: int) -> Placement:
    rows = part.rows_per_block(kernel_block)
    size = part.bytes_per_block
    row = exact_quotient(size, rows, f"{part.name}: bytes by kernel blocks")
    return Placement(part.name, buffer, start, 0, size, rows, row, row)


def _lay_pages(pool: _Pages) -> Pool:
    placed = [
        PlacedLayer(layout.layer, group, tuple(_in_page(layout, 0, 0)))
        for layout, group in pool.members
    ]
    reason = "the operators take strides: a block is one page"
    return Pool(Storage.PAGED, reason, (pool.width,), tuple(placed))


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


def _row_bytes(groups: Groups, shapes: Sequence[PageShape] = ()) -> int:
    """Bytes of a page's row: the packed pages of the group with the most; 0 without any.

    Blocks of a page are equally far apart, and kernel blocks of a block, in every group.
    """
    needed, unit = 0, ROW_ALIGNMENT
    for group, shape in zip(groups, shapes or [ONE_BLOCK] * len(groups), strict=True):
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


def _lay_row(groups: Groups, row: int, shapes: Sequence[PageShape] = ()) -> Pool:
    """Kernel blocks of a group's layers one behind the other, as often as a block has some."""
    placed = []
    for index, group in enumerate(groups):
        start = 0
        block = row // (shapes[index].blocks if shapes else 1)
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
