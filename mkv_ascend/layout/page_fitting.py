# SPDX-License-Identifier: Apache-2.0
"""Planes of a page, and how many blocks of each group lie in one, for groups that are given.

A group with ``k`` blocks to a stretch and ``S`` planes to a component needs S planes of width
``k * c`` for each component of ``c`` bytes. A page has for every width as many planes as the group
that needs the most of them. So there is little to choose:

- **k** makes components of unequal groups meet in planes of one width. What matters is which of
  them meet; larger numbers with the same ratios only make the planes coarser.
- **S** makes groups fill the planes that are there: what one has beyond another is idle while the
  other owns the page.

What a request holds is (sum of ``blocks / (k * S)``) times the bytes of a page: with given k this
is nearly convex in the logarithms of S, so that steps from a good start find the least of it.

Where operators take any stride, a page is one row of every group instead. A group with k blocks in
it has them W / k bytes apart, so k divides W, and the pages of its layers lie one behind the other
in a block. What a block has beyond these is idle. W is about what some blocks of a leading group
fill, or a little longer.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mkv_ascend.layout.component import PageShape

PRICE_OF_A_GROUP = 0.003
"""Share of a step's time that one more KV group costs; see docs/kv_groups.md."""
MOST_STARTS = 2
"""Starts from which better numbers of stretches are looked for."""
WORTH_STEPS = 1.2
"""A start is left if its price is more than this times the least."""
MOST_SPANS = 16
"""Most stretches of a leading group that are tried as starts."""
MOST_TRIED = 128
"""After so many starts no other ways of meeting are tried."""
LEADERS = 2
"""Groups, those with the most bytes, whose multiples are tried as planes of a page."""
MOST_CHOICES = 48
"""Ways of meeting that are tried, those with the narrowest planes first."""
MOST_LONGER = 1 / 64
"""Share of a row by which it may be longer than its leading group needs."""
ROUNDINGS = (1, 2, 6, 12, 60, 120, 840, 2520)
"""Of how many units rows are tried to be a multiple: others fit there, too."""


@dataclass(frozen=True)
class Demand:
    """What a group needs.

    ``sizes``: bytes of a component, and how many there are, ascending; of packed pages what those
    of one block need in all. ``blocks``: that the request holds. ``unit``: bytes that a block of
    packed pages is a multiple of; 0 for others.
    """

    sizes: tuple[tuple[int, int], ...]
    blocks: int
    unit: int = 0

    @property
    def block_bytes(self) -> int:
        return sum(size * number for size, number in self.sizes)

    @property
    def needed_bytes(self) -> int:
        return self.blocks * self.block_bytes


@dataclass(frozen=True)
class Limits:
    """What is allowed.

    ``memory_bytes``: for all pages; ``largest_page``: bytes; ``one_block``: a page is a block.
    """

    memory_bytes: int
    largest_page: int
    one_block: bool = False

    def price(self, held_bytes: float, page_bytes: float, groups: int) -> float:
        """Bytes of a request, and its part of what groups cost.

        Of the last page of each group a part is empty, and each group costs a share of the time of
        a step.
        """
        return held_bytes * (1 + groups * (PRICE_OF_A_GROUP + page_bytes / self.memory_bytes))


@dataclass(frozen=True)
class Fit:
    """Planes (width in bytes, how many), ascending; for each group how its blocks lie in a page."""

    planes: tuple[tuple[int, int], ...]
    shapes: tuple[PageShape, ...]
    held_bytes: float
    price: float

    def gains(self, demands: Sequence[Demand]) -> list[float]:
        """Bytes of the request that a split of each group could save at most, about.

        What is idle while the group owns a page, and planes that nobody else needs.
        """
        page = sum(width * number for width, number in self.planes)
        taken = [
            {size * shape.per_stretch: number * shape.stretches for size, number in demand.sizes}
            for demand, shape in zip(demands, self.shapes, strict=True)
        ]
        gains = []
        for index, demand in enumerate(demands):
            others = taken[:index] + taken[index + 1 :]
            alone = sum(
                width * max(0, number - max((other.get(width, 0) for other in others), default=0))
                for width, number in taken[index].items()
            )
            idle = demand.blocks / self.shapes[index].blocks * page - demand.needed_bytes
            gains.append(max(idle, alone * (self.held_bytes / page)))
        return gains


def least_price(demands: Sequence[Demand], limits: Limits) -> float:
    """No fit of these groups has a lower price: nothing idle, pages of the largest block."""
    page = max(demand.block_bytes for demand in demands)
    return limits.price(sum(demand.needed_bytes for demand in demands), page, len(demands))


def best_fit(demands: Sequence[Demand], limits: Limits, below: float = math.inf) -> Fit | None:
    """The fit with the least price that is found; None where it is not less than ``below``.

    One block of each group in a page, whatever its bytes, is always among what is tried.
    """
    ones = [1] * len(demands)
    if limits.one_block:
        fit = _Stretches(demands, tuple(ones), limits).fit(ones, ones)
        return fit if fit.price < below else None
    tried = [_Stretches(demands, blocks, limits) for blocks in _meetings(demands)]
    starts = [(tried[0].price(ones, math.inf), 0, ones)]
    reached = min(below, starts[0][0])
    bounds = [choice.bound() for choice in tried]
    for index in sorted(range(len(tried)), key=lambda index: (bounds[index], index)):
        if bounds[index] >= reached or len(starts) >= MOST_TRIED:
            break
        for price, spans in tried[index].starts(reached):
            starts.append((price, index, spans))
            reached = min(reached, price)
    best, chosen = below, None
    for price, index, spans in sorted(starts)[:MOST_STARTS]:
        if price > WORTH_STEPS * reached:
            break
        found_price, found = tried[index].descend(price, spans)
        if found_price < best:
            best, chosen = found_price, (index, found)
    return None if chosen is None else tried[chosen[0]].fit(chosen[1])


def _meetings(demands: Sequence[Demand]) -> list[tuple[int, ...]]:
    """Blocks to a stretch of each group: 1 for all, then for each width who can meet there."""
    # At their sizes, and at common multiples of two of them and of the largest of each.
    sizes = {size for demand in demands for size, _ in demand.sizes}
    main = [max(demand.sizes, key=math.prod)[0] for demand in demands]
    pairs = {math.lcm(*pair) for pair in itertools.combinations(sizes, 2)}
    seen = {(1,) * len(demands): None}
    for width in sorted(sizes | pairs | {math.lcm(*main)}):
        choices = [
            [width // size for size, _ in demand.sizes if width % size == 0] or [1]
            for demand in demands
        ]
        for chosen in itertools.islice(itertools.product(*choices), MOST_CHOICES):
            common = math.gcd(*chosen)
            seen.setdefault(tuple(blocks // common for blocks in chosen), None)
            if len(seen) >= MOST_CHOICES:
                return list(seen)
    return list(seen)


def _least_held(first: list[int], load: float, second: list[int], other: float) -> float:
    """Least bytes that two groups hold: ``first`` and ``second``: bytes by width of one stretch.

    With t stretches of the second to one of the first a page is as wide in each width as the wider
    of both. Between the t where that changes it is ``fixed + slope * t`` bytes.
    """
    turns = sorted({a / b for a, b in zip(first, second, strict=True) if a and b})
    least = math.inf
    for low, high in itertools.pairwise((1e-9, *turns, 1e9)):
        middle = math.sqrt(low * high)
        is_first = [a >= middle * b for a, b in zip(first, second, strict=True)]
        fixed = sum(a for a, wider in zip(first, is_first, strict=True) if wider)
        slope = sum(b for b, wider in zip(second, is_first, strict=True) if not wider)
        lowest = math.sqrt(other * fixed / (load * slope)) if slope else high
        t = min(max(lowest, low), high)
        least = min(least, (fixed + slope * t) * (load + other / t))
    return least


class _Stretches:
    """Stretches of each group in a page (S), with given blocks to a stretch (k) of each."""

    def __init__(self, demands: Sequence[Demand], blocks: tuple[int, ...], limits: Limits) -> None:
        pairs = list(zip(demands, blocks, strict=True))
        self.widths = sorted({size * k for demand, k in pairs for size, _ in demand.sizes})
        place = {width: index for index, width in enumerate(self.widths)}
        # Of each group: the place of each width, and components of that width.
        self.parts = [[(place[s * k], number) for s, number in demand.sizes] for demand, k in pairs]
        # Stretches that the request holds.
        self.loads = [demand.blocks / k for demand, k in pairs]
        self.weights = [demand.needed_bytes for demand in demands]
        # Groups, those with the most bytes first.
        self.heaviest = sorted(range(len(demands)), key=lambda index: -self.weights[index])
        self.blocks, self.limits, self.needed = blocks, limits, sum(self.weights)

    def bound(self) -> float:
        """No numbers of stretches have a lower price, even if they were no whole numbers.

        Of the two groups with the most bytes; the others are taken to leave nothing idle.
        """
        one = []
        for parts in self.parts:
            numbers = dict(parts)
            one.append([width * numbers.get(place, 0) for place, width in enumerate(self.widths)])
        held = float(self.needed)
        if len(one) > 1:
            a, b = self.heaviest[:2]
            least = _least_held(one[a], self.loads[a], one[b], self.loads[b])
            held += least - self.weights[a] - self.weights[b]
        return self.limits.price(held, max(map(sum, one)), len(one))

    def starts(self, below: float) -> Iterator[tuple[float, list[int]]]:
        """Pages that a leading group fills, with as many stretches of the others as fit there."""
        largest = self.limits.largest_page
        for leader in self.heaviest[:LEADERS]:
            for spans in range(1, MOST_SPANS + 1):
                counts = [0] * len(self.widths)
                for place, number in self.parts[leader]:
                    counts[place] = number * spans
                page = self._page(counts)
                price = self.limits.price(self.needed, page, len(self.parts))
                if page > largest or price >= below:
                    break
                # Widths that are not there can be added.
                fitting = [
                    max(1, min((counts[p] // n for p, n in parts if counts[p]), default=1))
                    for parts in self.parts
                ]
                yield self.price(fitting, largest), fitting

    def _page(self, counts: list[int]) -> int:
        return sum(map(int.__mul__, counts, self.widths))

    def _counts(self, spans: list[int]) -> list[int]:
        """How many planes of each width so many stretches take."""
        counts = [0] * len(self.widths)
        for span, parts in zip(spans, self.parts, strict=True):
            for place, number in parts:
                if number * span > counts[place]:
                    counts[place] = number * span
        return counts

    def _filled(self, counts: list[int]) -> list[int]:
        """Stretches of each group that planes have room for."""
        return [min(counts[place] // number for place, number in parts) for parts in self.parts]

    def _cost(self, filled: list[int], page: int) -> tuple[float, float]:
        """Bytes that the request holds with so many stretches of each group, and their price."""
        held = sum(map(float.__truediv__, self.loads, map(float, filled))) * page
        return held, self.limits.price(held, page, len(self.parts))

    def price(self, spans: list[int], largest_page: float) -> float:
        """The price of so many stretches, and of those that fit beside."""
        counts = self._counts(spans)
        page = self._page(counts)
        return math.inf if page > largest_page else self._cost(self._filled(counts), page)[1]

    def descend(self, price: float, spans: list[int]) -> tuple[float, list[int]]:
        """Change the stretches of one group at a time for as long as that lowers the price."""
        while True:
            better, found = price, None
            for group, span in enumerate(spans):
                near = {span // 2, span - 1, span + 1, span + 2, span * 2} - {0, span}
                for other in sorted(near):
                    tried = [*spans[:group], other, *spans[group + 1 :]]
                    new = self.price(tried, self.limits.largest_page)
                    if new < better * (1 - 1e-9):
                        better, found = new, tried
            if found is None:
                return price, spans
            price, spans = better, found

    def fit(self, spans: list[int], filled: list[int] | None = None) -> Fit:
        """Planes and shapes for these stretches, with all that fit there or ``filled`` alone."""
        counts = self._counts(spans)
        filled = filled or self._filled(counts)
        planes = tuple(zip(self.widths, counts, strict=True))
        shapes = tuple(map(PageShape, self.blocks, filled))
        return Fit(planes, shapes, *self._cost(filled, self._page(counts)))


def best_row(demands: Sequence[Demand], limits: Limits, below: float = math.inf) -> Fit | None:
    """As ``best_fit`` for a row of packed pages."""
    best, found = below, None
    for blocks in _rows(demands, limits):
        row = row_bytes(demands, blocks)
        if row > limits.largest_page and max(blocks) > 1:
            continue
        held = row * sum(one.blocks / k for one, k in zip(demands, blocks, strict=True))
        price = limits.price(held, row, len(demands))
        if price < best:
            shapes = tuple(map(PageShape, blocks))
            best, found = price, Fit(((row, 1),), shapes, held, price)
    return found


def row_bytes(demands: Sequence[Demand], blocks: Sequence[int]) -> int:
    """The shortest row that holds so many blocks of each group."""
    pairs = list(zip(demands, blocks, strict=True))
    unit = math.lcm(*(one.unit * k for one, k in pairs))
    return -(-max(one.block_bytes * k for one, k in pairs) // unit) * unit


def _rows(demands: Sequence[Demand], limits: Limits) -> Iterator[tuple[int, ...]]:
    seen = {(1,) * len(demands)}
    yield from seen
    if limits.one_block:
        return
    unit = math.lcm(*(one.unit for one in demands))
    for leader in sorted(demands, key=lambda one: -one.needed_bytes)[:LEADERS]:
        for spans in range(1, MOST_SPANS + 1):
            least = leader.block_bytes * spans
            if spans > 1 and least > limits.largest_page:
                break
            for factor in ROUNDINGS:
                row = -(-least // (unit * factor)) * unit * factor
                if factor > 1 and row - least > least * MOST_LONGER:
                    break
                blocks = tuple(row // one.block_bytes for one in demands)
                if min(blocks) and blocks not in seen:
                    seen.add(blocks)
                    yield blocks
