# SPDX-License-Identifier: Apache-2.0
"""Plans pages that groups share: which layers are a group, and how pages are cut for each.

``pooling`` says what planes and stretches are, ``page_fitting`` chooses them, and rows; here layers
are sorted into groups. Layers that keep the same tokens are one group at first. Groups are then
split, by sizes of components or in equal parts, for as long as a split lowers the price
(``page_fitting.Limits``). A group with a window may get smaller blocks instead, which hold less
beyond it, but not beside states.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from mkv_ascend.layout.grouping import Group, GroupingError, Groups
from mkv_ascend.layout.kind import Role
from mkv_ascend.layout.page_fitting import (
    PRICE_OF_A_GROUP,
    Demand,
    Fit,
    Limits,
    best_fit,
    best_row,
    least_price,
)
from mkv_ascend.layout.requirements import LayerRequirements, Request, RetentionKind

USUAL_MEMORY = 48 * 2**30
"""Bytes for all pages, where they are not known."""
LARGEST_PAGE = 256 * 2**20
"""Bytes. A larger page is taken only where one block of each group fills it."""
USUAL_MOST_GROUPS = 6
"""No more groups than these come from splits."""
MOST_GROUPS_OF_ONE_BLOCK = 16
"""The same where a page is a block: only splits make groups equal there."""
MOST_EXTRA_GROUPS = 3
"""Beyond one for each way of keeping tokens; where that is more than ``USUAL_MOST_GROUPS``."""
MOST_FITS = 32
"""Splits that are tried, in all."""
MOST_SIZES = 3
"""Layers with more unlike sizes of components are not split by these."""
WAYS = (2, 3, 5)
"""Equal parts that a group is split into."""
BY_SIZES = 0
"""A way of splitting: layers with components of one size. Others are a number of equal parts."""


@dataclass(frozen=True)
class PagePlan(Groups):
    """``planes``: bytes of each plane in one page, ascending."""

    planes: tuple[int, ...]

    @property
    def page_bytes(self) -> int:
        return sum(self.planes)

    @property
    def held_bytes(self) -> float:
        """Bytes that a request holds in the long run: requests share pages."""
        return sum(group.blocks / group.shape.blocks for group in self.groups) * self.page_bytes


@dataclass(frozen=True)
class _Part:
    """Layers that are to be one group, in any order, in blocks of one size."""

    layers: tuple[LayerRequirements, ...]
    block_size: int

    @cached_property
    def sizes(self) -> tuple[tuple[int, int], ...]:
        """Bytes of a component in one block, and how many there are, ascending."""
        sizes = [size for need in self.layers for size in need.sizes_in_planes(self.block_size)]
        return ((sum(sizes), 1),) if self.unit else tuple(sorted(Counter(sizes).items()))

    @cached_property
    def unit(self) -> int:
        """Bytes that a block of packed pages is a multiple of; 0 for others."""
        is_packed = self.layers[0].is_packed
        return math.lcm(*(x.row_unit(self.block_size) for x in self.layers)) if is_packed else 0

    def demand(self, request: Request) -> Demand:
        blocks = self.layers[0].retention.blocks(self.block_size, request)
        return Demand(self.sizes, blocks, self.unit)

    @cached_property
    def splits(self) -> dict[int, tuple[_Part, ...]]:
        """In ``WAYS`` equal parts of layers in turn; by sizes of components (``BY_SIZES``)."""
        unlike: dict[tuple[int, ...], list[LayerRequirements]] = {}
        for need in self.layers:
            unlike.setdefault(need.sizes_in_planes(self.block_size), []).append(need)
        # Layers of one size in turn, and of the next from where these ended.
        ordered = [need for some in unlike.values() for need in some]
        found = {number: [ordered[n::number] for n in range(number)] for number in WAYS}
        found = {number: split for number, split in found.items() if len(split[-1]) > 1}
        if 1 < len(unlike) <= MOST_SIZES:
            found = {BY_SIZES: list(unlike.values()), **found}
        return {
            way: tuple(_Part(tuple(some), self.block_size) for some in split)
            for way, split in found.items()
        }

    def finer(self, request: Request, hash_block_size: int | None) -> _Part | None:
        """The same in the smaller blocks that hold least of a window; None where none does."""
        retention = self.layers[0].retention
        if retention.kind not in (RetentionKind.WINDOW, RetentionKind.CHUNK):
            return None
        common = set.intersection(*(set(need.block_sizes) for need in self.layers))
        divisors = [size for size in common if self.block_size % size == 0]
        sizes = _multiples_of_hash(self.layers[0], divisors, hash_block_size)
        best = min(sizes, key=lambda size: (size * retention.blocks(size, request), -size))
        return None if best == self.block_size else _Part(self.layers, best)


def plan_pages(
    needs: Iterable[LayerRequirements],
    request: Request,
    memory_bytes: int | None = None,
    *,
    hash_block_size: int | None = None,
    one_block: bool = False,
) -> PagePlan:
    """Groups of the layers, given in the order of execution, and pages that these share.

    ``memory_bytes``: for all pages, about; ``USUAL_MEMORY`` where it is not known.
    ``hash_block_size``: tokens that vLLM hashes at a time, when that is fixed: it must divide every
    block size. ``one_block``: whether a page is one block of every group.
    Raises GroupingError when two layers have one name, or a layer has no block size that
    ``hash_block_size`` divides.
    """
    layers = sorted(needs, key=lambda need: need.role is not Role.TARGET)
    if not layers:
        return PagePlan((), ())
    place: dict[str, int] = {}
    for need in layers:
        if need.name in place:
            raise GroupingError(
                f"two layers are named {need.name!r}; a layer is known by its name, so each needs "
                "its own (give the draft's layers a prefix)"
            )
        place[need.name] = len(place)
    # Rounded to a power of two, so that estimates of it give the same plan.
    memory = USUAL_MEMORY if not memory_bytes else 1 << (memory_bytes.bit_length() - 1)
    limits = Limits(memory, LARGEST_PAGE, one_block)
    parts, fit = _split(_together(layers, hash_block_size), request, limits, hash_block_size)
    groups = []
    for part, shape in zip(parts, fit.shapes, strict=True):
        members = sorted(part.layers, key=lambda need: place[need.name])
        retention = members[0].retention
        groups.append(
            Group(
                layers=tuple(need.name for need in members),
                block_size=part.block_size,
                blocks=retention.blocks(part.block_size, request),
                has_draft=members[-1].role is Role.DRAFT,
                retention=retention,
                shape=shape,
            )
        )
    return PagePlan(
        planes=tuple(width for width, number in fit.planes for _ in range(number)),
        groups=tuple(sorted(groups, key=lambda group: place[group.layers[0]])),
    )


def _multiples_of_hash(
    need: LayerRequirements, sizes: Sequence[int], hash_block_size: int | None
) -> list[int]:
    """Those that ``hash_block_size`` divides, all of a state's; GroupingError where none is."""
    divisor = (hash_block_size or 1) if need.row_bytes else 1
    allowed = [size for size in sizes if size % divisor == 0]
    if not allowed:
        raise GroupingError(
            f"layer {need.name}: of its block sizes {sizes} none is a multiple "
            f"of hash_block_size {divisor}; choose a hash_block_size that divides one of them"
        )
    return allowed


def _together(
    layers: Sequence[LayerRequirements], hash_block_size: int | None
) -> tuple[_Part, ...]:
    """One part for each way of keeping tokens, block table, kernel block and block size.

    A layer, the target's first, joins others with a block size that its kernels take, too, if that
    makes hits no coarser than the target's own layers do: there is a group less.
    """
    target = [need for need in layers if need.role is Role.TARGET and need.row_bytes]
    tokens = [need.retention.tokens_of_block(need.block_size) for need in target]
    hits = math.lcm(*tokens, hash_block_size or 1)
    alike: dict[object, list[tuple[int, list[LayerRequirements]]]] = {}
    for need in layers:
        sizes = [
            size
            for size in need.block_sizes
            if size == need.block_size or hits % need.retention.tokens_of_block(size) == 0
        ]
        sizes = _multiples_of_hash(need, sizes, hash_block_size)
        found = alike.setdefault((need.retention, need.table), [])
        for size, members in found:
            kernel_blocks = {one.kernel_block for one in [need, *members]} - {None}
            if size in sizes and len(kernel_blocks) <= 1:
                members.append(need)
                break
        else:
            found.append((sizes[0], [need]))
    return tuple(_Part(tuple(members), size) for found in alike.values() for size, members in found)


def _split(
    parts: tuple[_Part, ...], request: Request, limits: Limits, hash_block_size: int | None
) -> tuple[tuple[_Part, ...], Fit]:
    """Split the parts for as long as that lowers the price, by the best split each time."""
    usual = MOST_GROUPS_OF_ONE_BLOCK if limits.one_block else USUAL_MOST_GROUPS
    most = max(usual, len(parts) + MOST_EXTRA_GROUPS)
    # Packed pages are all of them, or none (``let_strides_be_taken``).
    best_of = best_row if parts[0].unit else best_fit
    best = best_of([part.demand(request) for part in parts], limits)
    if best is None:
        raise AssertionError("one block of each group in a page always fits")
    # Beside states vLLM hashes the tokens of the largest block, which must divide all others.
    may_be_finer = all(part.layers[0].retention.kind is not RetentionKind.STATE for part in parts)
    left = MOST_FITS
    while left > 0:
        better = None
        gains = best.gains([part.demand(request) for part in parts])
        worth = [gain >= PRICE_OF_A_GROUP * best.held_bytes for gain in gains]
        finer = [part.finer(request, hash_block_size) if may_be_finer else None for part in parts]
        for tried in _splits(parts, worth, finer):
            demands = [part.demand(request) for part in tried]
            if len(tried) > most or left <= 0 or least_price(demands, limits) >= best.price:
                continue
            left -= 1
            fit = best_of(demands, limits, best.price)
            if fit is not None:
                better, best = tried, fit
        if better is None:
            break
        parts = better
    return parts, best


def _splits(
    parts: tuple[_Part, ...], worth: Sequence[bool], finer: Sequence[_Part | None]
) -> Iterator[tuple[_Part, ...]]:
    """Every split of one part, one part in finer blocks, and splits of all in one way.

    ``worth``: of which parts a split may gain as much as a group costs.
    """
    for index, part in enumerate(parts):
        before, after = parts[:index], parts[index + 1 :]
        for split in part.splits.values() if worth[index] else ():
            yield (*before, *split, *after)
        if (smaller := finer[index]) is not None:
            yield (*before, smaller, *after)
    # What one alone gains nothing by: planes stay for as long as one group needs them.
    for way in (BY_SIZES, *WAYS):
        if sum(way in part.splits for part in parts) > 1:
            yield tuple(p for part in parts for p in part.splits.get(way, (part,)))
