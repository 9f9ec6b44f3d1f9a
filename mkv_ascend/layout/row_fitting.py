# SPDX-License-Identifier: Apache-2.0
"""How many blocks of each group lie in one row, for layers whose operators take any stride.

A page is one row of every group. A group with k blocks in it has them W / k bytes apart, so k
divides W, and the pages of its layers lie one behind the other in a block. What a block has beyond
these is idle. W is about what some blocks of a leading group fill, or a little longer.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from mkv_ascend.layout.page_fitting import LEADERS, MOST_SPANS, Demand, Fit, Limits
from mkv_ascend.layout.page_shape import PageShape

MOST_LONGER = 1 / 64
"""Share of a row by which it may be longer than its leading group needs."""
ROUNDINGS = (1, 2, 6, 12, 60, 120, 840, 2520)
"""Of how many units rows are tried to be a multiple."""


def best_row(demands: Sequence[Demand], limits: Limits, below: float = math.inf) -> Fit | None:
    """The row with the least price that is found; None where it is not less than ``below``.

    One block of each group in a row is always among what is tried.
    """
    best, found = below, None
    for blocks in _choices(demands, limits):
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


def _choices(demands: Sequence[Demand], limits: Limits) -> Iterator[tuple[int, ...]]:
    """Blocks of each group in a row."""
    seen = {(1,) * len(demands): None}
    yield from seen
    if limits.one_block:
        return
    unit = math.lcm(*(one.unit for one in demands))
    for leader in sorted(demands, key=lambda one: -one.needed_bytes)[:LEADERS]:
        for spans in range(1, MOST_SPANS + 1):
            least = leader.block_bytes * spans
            if spans > 1 and least > limits.largest_page:
                break
            for row in _rounded(least, unit):
                blocks = tuple(row // one.block_bytes for one in demands)
                if min(blocks) and blocks not in seen:
                    seen[blocks] = None
                    yield blocks


def _rounded(least: int, unit: int) -> Iterator[int]:
    """Rows of at least so many bytes; other numbers of blocks fit in the longer ones."""
    for factor in ROUNDINGS:
        row = -(-least // (unit * factor)) * unit * factor
        if factor > 1 and row - least > least * MOST_LONGER:
            return
        yield row
