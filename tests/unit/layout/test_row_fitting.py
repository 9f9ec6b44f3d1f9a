# SPDX-License-Identifier: Apache-2.0
"""Rows that groups of packed pages share: beside plain enumeration of numbers."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence

from mkv_ascend.layout.page_fitting import Demand, Limits, best_row, row_bytes

LIMITS = Limits(10**7, 10**5)
UNIT = 32


def demand(block_bytes: int, blocks: int, unit: int = UNIT) -> Demand:
    return Demand(((block_bytes, 1),), blocks, unit)


def random_demands(rng: random.Random) -> list[Demand]:
    """States of some KiB beside small blocks of keys."""
    sizes = [rng.randint(40, 200), *(rng.randint(1, 40) for _ in range(rng.choice((1, 2))))]
    return [demand(size * UNIT, rng.randint(1, 300), UNIT * rng.choice((1, 2))) for size in sizes]


def price_of(demands: Sequence[Demand], blocks: Sequence[int]) -> float:
    row = row_bytes(demands, blocks)
    if row > LIMITS.largest_page and max(blocks) > 1:
        return math.inf
    held = row * sum(one.blocks / k for one, k in zip(demands, blocks, strict=True))
    return LIMITS.price(held, row, len(demands))


def test_blocks_are_equally_far_apart_and_hold_what_they_need() -> None:
    rng = random.Random(6)
    for _ in range(50):
        demands = random_demands(rng)
        fit = best_row(demands, LIMITS)
        assert fit is not None
        ((row, number),) = fit.planes
        assert number == 1
        for one, shape in zip(demands, fit.shapes, strict=True):
            assert shape.stretches == 1
            apart, rest = divmod(row, shape.per_stretch)
            assert (rest, apart % one.unit) == (0, 0)
            assert apart >= one.block_bytes
        assert best_row(demands, LIMITS, fit.price) is None


def test_the_row_is_near_the_best_of_all() -> None:
    rng, over = random.Random(7), []
    for _ in range(12):
        demands = random_demands(rng)[:2]
        fit = best_row(demands, LIMITS)
        assert fit is not None
        blocks = [range(1, LIMITS.largest_page // one.block_bytes + 2) for one in demands]
        best = min(price_of(demands, some) for some in itertools.product(*blocks))
        over.append(fit.price / best)
    assert max(over) < 1.05
    assert sum(over) / len(over) < 1.01


def test_a_page_that_is_a_block_has_one_of_each_group() -> None:
    demands = [demand(100 * UNIT, 2), demand(3 * UNIT, 200)]
    fit = best_row(demands, Limits(10**7, 10**5, one_block=True))
    assert fit is not None
    assert [shape.blocks for shape in fit.shapes] == [1, 1]
    assert fit.planes == ((100 * UNIT, 1),)
    shared = best_row(demands, LIMITS)
    assert shared is not None
    assert shared.held_bytes < fit.held_bytes / 10
