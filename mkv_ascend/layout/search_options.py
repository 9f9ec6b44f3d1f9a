# SPDX-License-Identifier: Apache-2.0
"""The choices of the search for KV groups: which layers go together, and in how many groups.

Layers may share a block table if their retentions, their kernel blocks and their ``table`` are
equal; they then belong to one table here. Layers of one table with blocks of one size are assigned
to their groups round-robin, type after type. If types share planes and it is better, they are
assigned by load: each layer goes to the group that grows least by it. Any assignment to as many
groups needs at least ``planes`` in some group, the average rounded up to whole layers; the bound
counts these. The chosen assignment needs ``assigned``; the result counts these.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from mkv_ascend.layout.placement import ROW_ALIGNMENT
from mkv_ascend.layout.retention import Request, Retention

Integers = npt.NDArray[np.int64]

Plane = tuple[int, int]
"""Bytes per block; 0 for a contiguous component, 1 for a page, ``PACKED`` for a part of a row of
packed pages. Components share a plane when both are equal."""

PACKED = 2

Table = tuple[Retention, int | None, str]

MOST_GROUPS_BY_LOAD = 16
"""Groups up to which layers are assigned by load where round-robin is not the best."""


@dataclass(frozen=True)
class LayerType:
    """``count`` layers that are alike for grouping. Other fields as in ``LayerRequirements``."""

    retention: Retention
    block_sizes: tuple[int, ...]
    row_bytes: tuple[int, ...]
    state_bytes: tuple[int, ...]
    takes_strides: bool
    kernel_block: int | None
    count: int
    table: str = ""
    is_packed: bool = False

    def component_bytes(self, block_size: int) -> tuple[int, ...]:
        """Bytes of each component in one block of ``block_size`` tokens."""
        return tuple(row * block_size for row in self.row_bytes) + self.state_bytes

    def planes(self, block_size: int) -> Counter[Plane]:
        """What one layer needs of a pool: a page as a whole where its operators take strides.

        Packed pages are as many planes of ``ROW_ALIGNMENT`` bytes as they fill.
        """
        parts = self.component_bytes(block_size)
        if self.is_packed:
            used = sum(-(-size // ROW_ALIGNMENT) for size in parts)
            return Counter({(ROW_ALIGNMENT, PACKED): used})
        if not self.takes_strides:
            return Counter((size, 0) for size in parts)
        return Counter([(sum(parts), 1)])

    @property
    def sort_key(self) -> tuple[object, ...]:
        """An order of types that does not depend on the order of layers."""
        return (
            astuple(self.retention),
            self.kernel_block or 0,
            self.table,
            self.takes_strides,
            self.is_packed,
            self.row_bytes,
            self.state_bytes,
            self.block_sizes,
            self.count,
        )


@dataclass(frozen=True)
class Bundle:
    """Types (indices) whose layers are assigned, in this order, to ``splits`` groups.

    ``block_size``: tokens of a block of each of the groups. ``by_load``: assigned by what the
    groups have of each plane, not round-robin.
    """

    types: tuple[int, ...]
    block_size: int
    splits: int
    by_load: bool = False

    def group_of_layers(self, types: Sequence[LayerType]) -> list[list[int]]:
        """For each type of the bundle, the group (from 0) of each of its layers."""
        members = [types[index] for index in self.types]
        counts = [member.count for member in members]
        if self.by_load:
            needs = [member.planes(self.block_size) for member in members]
            return _assign_by_load(needs, counts, self.splits)
        starts = [sum(counts[:index]) for index in range(len(counts))]
        return [
            [(start + layer) % self.splits for layer in range(count)]
            for start, count in zip(starts, counts, strict=True)
        ]


@dataclass(frozen=True)
class Level:
    """The ways to group the types of one bundle, one row each.

    ``planes`` and ``assigned``: [options, planes], the most of each plane that a group needs, at
    least and as assigned. ``blocks``: of one request in all groups. ``moved``: types that get other
    blocks than their own, the larger the more. ``table``: levels of one table must differ in block
    size.
    """

    table: int
    bundles: tuple[Bundle, ...]
    planes: Integers
    assigned: Integers
    blocks: Integers
    splits: Integers
    moved: Integers
    sizes: Integers

    def without_size(self, size: int) -> Level:
        """The ways that remain when blocks of ``size`` tokens are another bundle's."""
        keep = np.flatnonzero(self.sizes != size)
        columns = (self.planes, self.assigned, self.blocks, self.splits, self.moved, self.sizes)
        bundles = tuple(self.bundles[index] for index in keep)
        return Level(self.table, bundles, *(column[keep] for column in columns))


def most_bytes(types: Sequence[LayerType], request: Request) -> int:
    """More bytes than any grouping of ``types`` holds for ``request``; of any size."""
    block = sum(
        kind.count * max(sum(kind.component_bytes(size)) for size in kind.block_sizes)
        for kind in types
    )
    blocks = sum(
        kind.count * max(kind.retention.blocks(size, request) for size in kind.block_sizes)
        for kind in types
    )
    return block * blocks


class Choices:
    """All choices for ``types``; ``weights``: bytes of each plane that any choice may need."""

    def __init__(self, types: Sequence[LayerType], request: Request) -> None:
        self.types = types
        self.request = request
        planes = {
            plane
            for layer_type in types
            for size in layer_type.block_sizes
            for plane in layer_type.planes(size)
        }
        self.plane_index = {plane: index for index, plane in enumerate(sorted(planes))}
        self.weights: Integers = np.array([size for size, _ in sorted(planes)], dtype=np.int64)
        # One table's types in an order of their own, the heaviest first.
        self.tables: dict[Table, list[int]] = {}
        for index in sorted(range(len(types)), key=lambda index: types[index].sort_key):
            layer_type = types[index]
            table = (layer_type.retention, layer_type.kernel_block, layer_type.table)
            self.tables.setdefault(table, []).append(index)
        self._levels: dict[tuple[int, tuple[int, ...]], Level | None] = {}

    @cached_property
    def needed_bytes(self) -> int:
        """What one request needs if no group has a byte of padding."""
        return sum(
            layer_type.count
            * min(
                layer_type.retention.blocks(size, self.request)
                * sum(layer_type.component_bytes(size))
                for size in layer_type.block_sizes
            )
            for layer_type in self.types
        )

    @cached_property
    def size_ranks(self) -> dict[int, int]:
        """Block sizes, counted from the smallest."""
        sizes = {size for layer_type in self.types for size in layer_type.block_sizes}
        return {size: rank for rank, size in enumerate(sorted(sizes))}

    def partitions(self) -> Iterator[tuple[Level, ...]]:
        """Every way to put types into bundles, as levels; together comes first."""
        yield from self._product(0, list(self.tables.values()))

    def _product(self, table: int, left: list[list[int]]) -> Iterator[tuple[Level, ...]]:
        if not left:
            yield ()
            return
        for part in _partitions(tuple(left[0])):
            levels = [self.level(table, types) for types in part]
            if None in levels or not _sizes_can_differ(levels):
                continue
            for others in self._product(table + 1, left[1:]):
                yield (*(level for level in levels if level is not None), *others)

    def heaviest(self) -> tuple[Level, ...]:
        """One type of each table: what is left out can only make a grouping cheaper."""
        result = []
        for table, members in enumerate(self.tables.values()):
            levels = [level for index in members if (level := self.level(table, (index,)))]
            result.append(max(levels, key=lambda level: int((level.planes @ self.weights).max())))
        return tuple(result)

    def level(self, table: int, types: tuple[int, ...]) -> Level | None:
        """The ways to group these types with blocks of one size; None where they have none."""
        key = (table, types)
        if key not in self._levels:
            self._levels[key] = self._make_level(table, types)
        return self._levels[key]

    def _make_level(self, table: int, types: tuple[int, ...]) -> Level | None:
        members = [self.types[index] for index in types]
        common = set.intersection(*(set(member.block_sizes) for member in members))
        rows = []
        for size in sorted(common, key=members[0].block_sizes.index):
            blocks = members[0].retention.blocks(size, self.request)
            rank = 1 + self.size_ranks[size]
            moved = sum(rank for member in members if member.block_sizes[0] != size)
            for order, splits, planes, assigned, by_load in self._assignments(types, size):
                bundle = Bundle(order, size, splits, by_load)
                rows.append((bundle, planes, assigned, blocks * splits, splits, moved, size))
        if not rows:
            return None
        bundles, *columns = zip(*rows, strict=True)
        return Level(table, bundles, *(np.array(column, dtype=np.int64) for column in columns))

    def _assignments(
        self, types: tuple[int, ...], size: int
    ) -> Iterator[tuple[tuple[int, ...], int, list[int], list[int], bool]]:
        """Order of types, number of groups, planes at least and as assigned, and whether by load.

        Only where planes change from one number of groups to the next.
        """
        needs = {index: self.types[index].planes(size) for index in types}
        weight = {index: sum(p[0] * n for p, n in needs[index].items()) for index in types}
        order = tuple(sorted(types, key=lambda index: -weight[index]))
        counts = [self.types[index].count for index in order]
        before: tuple[list[int], list[int]] | None = None
        for splits in range(1, sum(counts) + 1):
            held = _held_by_groups(counts, splits)
            planes, assigned = [0] * len(self.weights), [0] * len(self.weights)
            for plane, column in self.plane_index.items():
                each = [needs[index][plane] for index in order]
                if not any(each):
                    continue
                total = sum(n * count for n, count in zip(each, counts, strict=True))
                whole = math.gcd(*each)
                planes[column] = max(whole * -(-total // (whole * splits)), *each)
                assigned[column] = max(
                    sum(n * count for n, count in zip(each, group, strict=True)) for group in held
                )
            by_load = False
            if assigned != planes and splits <= MOST_GROUPS_BY_LOAD:
                most = _most_planes([needs[index] for index in order], counts, splits)
                loaded = [most[plane] for plane in self.plane_index]
                by_load = self.bytes_of(loaded) < self.bytes_of(assigned)
                assigned = loaded if by_load else assigned
            if (planes, assigned) != before:
                before = planes, assigned
                yield order, splits, planes, assigned, by_load

    def bytes_of(self, planes: Sequence[int]) -> int:
        """Bytes of one block with so many of each plane."""
        return sum(size * count for (size, _), count in zip(self.plane_index, planes, strict=True))


def _assign_by_load(
    needs: Sequence[Counter[Plane]], counts: Sequence[int], splits: int
) -> list[list[int]]:
    """Group of each layer of each type: each goes where it makes the largest group grow least.

    Of equally good groups to the one with the fewest layers of its type, then the first.
    """
    # Empty groups are alike, so layers of the first type go round. It may have a thousand of them.
    result = [[layer % splits for layer in range(counts[0])]]
    loads = [_held(needs[:1], result, group) for group in range(splits)]
    most = _most(loads)
    for need, count in zip(needs[1:], counts[1:], strict=True):
        own, placed = [0] * splits, []
        for _ in range(count):
            growth = [
                sum(max(0, load[plane] + n - most[plane]) * plane[0] for plane, n in need.items())
                for load in loads
            ]
            group = min(zip(growth, own, range(splits), strict=True))[2]
            loads[group].update(need)
            most |= loads[group]
            own[group] += 1
            placed.append(group)
        result.append(placed)
    return result


def _most_planes(
    needs: Sequence[Counter[Plane]], counts: Sequence[int], splits: int
) -> Counter[Plane]:
    """The most of each plane that a group has when layers are assigned by load."""
    placed = _assign_by_load(needs, counts, splits)
    return _most([_held(needs, placed, group) for group in range(splits)])


def _held(
    needs: Sequence[Counter[Plane]], placed: Sequence[Sequence[int]], group: int
) -> Counter[Plane]:
    """Planes of one group. ``placed``: group of each layer of each type."""
    held: Counter[Plane] = Counter()
    for need, groups in zip(needs, placed, strict=True):
        layers = groups.count(group)
        held.update({plane: n * layers for plane, n in need.items()})
    return held


def _most(loads: Iterable[Counter[Plane]]) -> Counter[Plane]:
    """The most of each plane that any group has."""
    most: Counter[Plane] = Counter()
    for load in loads:
        most |= load
    return most


def _held_by_groups(counts: Sequence[int], splits: int) -> list[list[int]]:
    """Layers of each type in those groups that can hold most: where a type begins.

    Layer i of all types in a row goes to group i modulo ``splits``.
    """
    starts = [sum(counts[:index]) for index in range(len(counts))]
    return [
        [
            count // splits + ((group - start) % splits < count % splits)
            for start, count in zip(starts, counts, strict=True)
        ]
        for group in {start % splits for start in starts}
    ]


def _sizes_can_differ(levels: Sequence[Level | None]) -> bool:
    """Whether bundles of one table can have blocks of different sizes.

    With blocks of one size they are one bundle, which is no dearer.
    """
    sizes = {int(size) for level in levels if level is not None for size in level.sizes}
    return len(levels) <= len(sizes)


def _partitions(items: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], ...]]:
    """All ways to put ``items`` into bundles; everything together comes first."""
    if not items:
        yield ()
        return
    head, rest = items[0], items[1:]
    for mask in range(2 ** len(rest) - 1, -1, -1):
        chosen = [item for i, item in enumerate(rest) if mask >> i & 1]
        left = tuple(item for i, item in enumerate(rest) if not mask >> i & 1)
        for others in _partitions(left):
            yield ((head, *chosen), *others)
