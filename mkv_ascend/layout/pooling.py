# SPDX-License-Identifier: Apache-2.0
"""Which layers of different KV groups share a pool, and where their components lie in it.

A block id belongs to one KV group at a time, so layers of different groups may use the same bytes
of it. Contiguous components share a plane only when their blocks are equally large: then block b
of both is the same bytes. So a pool of contiguous layers is a set of planes, and a layer may join
when the pool has planes of its sizes, or is given those that lack. Pages share by page size, or,
with ``block_outer``, all in one pool in which a page of the pool holds a page of every layer of a
group. Nothing here needs to be believed: the plan proves the result.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from mkv_ascend.layout.component import (
    Component,
    LayerLayout,
    MemoryFormat,
    Storage,
    exact_quotient,
)
from mkv_ascend.layout.placement import PlacedLayer, Placement, Pool

__all__ = ["bytes_per_block", "make_pools"]

Groups = Sequence[Sequence[LayerLayout]]
Plane = tuple[int, int]
"""Bytes of one block, and the alignment its start needs."""


@dataclass
class _Planes:
    """A pool of contiguous layers while it is being filled."""

    planes: list[Plane]
    members: list[tuple[LayerLayout, int]] = field(default_factory=list)
    used: dict[int, Counter[Plane]] = field(default_factory=dict)
    memory_format: MemoryFormat = MemoryFormat.ND

    def free(self, group: int) -> Counter[Plane]:
        return Counter(self.planes) - self.used.get(group, Counter())

    def missing(self, needed: Counter[Plane], group: int) -> Counter[Plane]:
        return needed - self.free(group)

    def add(self, layout: LayerLayout, group: int) -> None:
        needed = Counter(_planes_of(layout))
        self.planes += self.missing(needed, group).elements()
        self.members.append((layout, group))
        self.used.setdefault(group, Counter()).update(needed)


def _planes_of(layout: LayerLayout) -> list[Plane]:
    return [(part.bytes_per_block, layout.alignment) for part in layout.components]


def _plane_bytes(planes: Iterable[Plane]) -> int:
    return sum(size for size, _ in planes)


def _choose(pools: list[_Planes], layout: LayerLayout, group: int) -> _Planes | None:
    """The pool that grows least; of those the one with the least room left; None to open one."""
    needed = Counter(_planes_of(layout))
    best: tuple[int, int] | None = None
    chosen = None
    for pool in pools:
        if pool.memory_format is not layout.memory_format:
            continue
        growth = _plane_bytes(pool.missing(needed, group).elements())
        if growth == _plane_bytes(needed.elements()):
            continue
        cost = (growth, _plane_bytes(pool.free(group).elements()))
        if best is None or cost < best:
            best, chosen = cost, pool
    return chosen


def _contiguous_pools(groups: Groups) -> list[_Planes]:
    """Groups with the most bytes first: they open the pools that the others then fit into."""
    pools: list[_Planes] = []
    order = sorted(range(len(groups)), key=lambda index: -_group_bytes(groups[index]))
    for group in order:
        for layout in groups[group]:
            if layout.storage is Storage.PAGED:
                continue
            pool = _choose(pools, layout, group)
            if pool is None:
                pool = _Planes([], memory_format=layout.memory_format)
                pools.append(pool)
            pool.add(layout, group)
    return pools


def _group_bytes(group: Sequence[LayerLayout]) -> int:
    return sum(layout.used_bytes for layout in group if layout.storage is not Storage.PAGED)


@dataclass
class _Pages:
    """A pool of pages: ``width`` bytes per block, layers at offsets of the page."""

    splits: int
    width: int = 0
    members: list[tuple[LayerLayout, int, int]] = field(default_factory=list)


def _paged_pools(groups: Groups, block_outer: bool) -> list[_Pages]:
    if block_outer:
        return _block_outer_pools(groups)
    pools: dict[tuple[int, int, int], _Pages] = {}
    for group, layouts in enumerate(groups):
        seen: Counter[tuple[int, int]] = Counter()
        for layout in layouts:
            if layout.storage is not Storage.PAGED:
                continue
            size = (layout.page_bytes, layout.kernel_splits)
            pool = pools.setdefault((*size, seen[size]), _Pages(layout.kernel_splits))
            pool.width = layout.page_bytes
            pool.members.append((layout, group, 0))
            seen[size] += 1
    return list(pools.values())


def _block_outer_pools(groups: Groups) -> list[_Pages]:
    """One pool for each number of kernel blocks: a strided view needs one distance between them."""
    pools: dict[int, _Pages] = {}
    for group, layouts in enumerate(groups):
        offsets: Counter[int] = Counter()
        for layout in layouts:
            if layout.storage is not Storage.PAGED:
                continue
            splits = layout.kernel_splits
            pool = pools.setdefault(splits, _Pages(splits))
            pool.members.append((layout, group, offsets[splits]))
            offsets[splits] += layout.page_bytes // splits
            pool.width = max(pool.width, offsets[splits] * splits)
    return list(pools.values())


def bytes_per_block(groups: Groups, *, block_outer: bool = False) -> int:
    """Bytes that one block id costs over all pools; what a search over groupings compares."""
    planes = sum(_plane_bytes(pool.planes) for pool in _contiguous_pools(groups))
    return planes + sum(pool.width for pool in _paged_pools(groups, block_outer))


def make_pools(groups: Groups, *, block_outer: bool = False) -> tuple[Pool, ...]:
    """The pools of ``groups``: layouts in the order of execution, for each KV group."""
    pools = [_lay_planes(pool) for pool in _contiguous_pools(groups)]
    pools += [_lay_pages(pool, block_outer) for pool in _paged_pools(groups, block_outer)]
    return tuple(pools)


def _lay_planes(pool: _Planes) -> Pool:
    storage, reason = _contiguous_storage([layout for layout, _ in pool.members])
    sizes = [size for size, _ in pool.planes]
    if storage is Storage.SPLIT:
        buffers = tuple(sizes)
        starts = [(index, 0) for index in range(len(sizes))]
    else:
        buffers = (sum(sizes),)
        starts = [(0, sum(sizes[:index])) for index in range(len(sizes))]
    return Pool(storage, reason, buffers, tuple(_place_all(pool, starts)))


def _place_all(pool: _Planes, starts: list[tuple[int, int]]) -> Iterable[PlacedLayer]:
    taken: dict[int, set[int]] = {}
    for layout, group in pool.members:
        used = taken.setdefault(group, set())
        placements = []
        for part in layout.components:
            plane = (part.bytes_per_block, layout.alignment)
            index = next(
                index
                for index, candidate in enumerate(pool.planes)
                if candidate == plane and index not in used
            )
            used.add(index)
            buffer, start = starts[index]
            placements.append(_contiguous(part, layout.kernel_block, buffer, start))
        yield PlacedLayer(layout.layer, group, tuple(placements))


def _contiguous(
    part: Component, kernel_block: int | None, buffer: int, start_per_block: int
) -> Placement:
    rows = part.rows_per_block(kernel_block)
    row_bytes = exact_quotient(part.bytes_per_block, rows, f"{part.name}: bytes by kernel blocks")
    return Placement(
        part.name, buffer, start_per_block, 0, part.bytes_per_block, rows, row_bytes, row_bytes
    )


def _contiguous_storage(layouts: list[LayerLayout]) -> tuple[Storage, str]:
    if len({layout.geometry for layout in layouts}) == 1 and layouts[0].storage is Storage.SPLIT:
        return Storage.SPLIT, "the operators take contiguous components; all layers are alike"
    if all(layout.storage is Storage.SPLIT for layout in layouts):
        return Storage.PLANAR, (
            "the operators take contiguous components; layers that differ share planes of equal "
            "size"
        )
    return Storage.PLANAR, "states and caches of contiguous components share one buffer"


def _lay_pages(pool: _Pages, block_outer: bool) -> Pool:
    reason = "the operators take strides: a block is one page"
    if block_outer:
        reason += " of all layers of a group"
    stride = exact_quotient(pool.width, pool.splits, "page bytes by kernel blocks")
    placed = []
    for layout, group, offset in pool.members:
        placements = []
        start = offset
        for part in layout.components:
            rows = part.rows_per_block(layout.kernel_block)
            row_bytes = exact_quotient(part.bytes_per_block, rows, f"{part.name}: bytes by rows")
            if part.overlay:
                at = offset
            else:
                at, start = start, start + row_bytes
            placements.append(
                Placement(
                    part.name, 0, 0, at, pool.width, rows, stride, row_bytes, overlay=part.overlay
                )
            )
        placed.append(PlacedLayer(layout.layer, group, tuple(placements)))
    return Pool(Storage.PAGED, reason, (pool.width,), tuple(placed))
