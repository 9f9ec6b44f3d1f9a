# SPDX-License-Identifier: Apache-2.0
"""Planes of a page, rows of packed pages and blocks in both: beside plain enumeration."""

import itertools
import math
import random
from collections import Counter
from collections.abc import Sequence

from mkv_ascend.layout.page_fitting import (
    Demand,
    Limits,
    _meetings,
    _Stretches,
    best_fit,
    best_row,
    least_price,
    row_bytes,
)


def test_steps_do_not_lead_beyond_the_largest_page() -> None:
    tried = _Stretches([Demand(((4, 1),), 9)], (1,), Limits(10**6, 10))
    assert tried.price([2], 10) < tried.price([3], 10) == float("inf")


def random_demands(rng: random.Random) -> list[Demand]:
    return [
        Demand(
            tuple((size, rng.randint(1, 6)) for size in sorted(rng.sample((2, 4, 6, 8), 2))),
            rng.randint(1, 30),
        )
        for _ in range(rng.choice((2, 3)))
    ]


def test_no_numbers_of_blocks_are_below_the_bound() -> None:
    rng, limits = random.Random(3), Limits(10**5, 10**5)
    for _ in range(12):
        demands = random_demands(rng)
        for blocks in _meetings(demands):
            tried = _Stretches(demands, blocks, limits)
            spans = itertools.product((1, 2, 3, 5, 8), repeat=len(demands))
            prices = [tried.price(list(some), 10**9) for some in spans]
            assert tried.bound() <= min(prices) * (1 + 1e-9)
            assert least_price(demands, limits) <= min(prices) * (1 + 1e-9)


def test_the_fit_is_near_the_best_of_all() -> None:
    rng, limits, over = random.Random(4), Limits(10**6, 2000), []
    for _ in range(8):
        demands = random_demands(rng)
        found = best_fit(demands, limits)
        assert found is not None
        over.append(found.price / best_of_all(demands, limits))
        assert best_fit(demands, limits, found.price) is None
    assert max(over) < 1.05
    assert sum(over) / len(over) < 1.01


def best_of_all(demands: Sequence[Demand], limits: Limits) -> float:
    """The least price of all numbers k and S up to 4 and 8."""
    best = float("inf")
    ways = []
    for demand in demands:
        ways.append(
            [
                (Counter({size * k: number * s for size, number in demand.sizes}), k * s)
                for k, s in itertools.product(range(1, 5), range(1, 9))
            ]
        )
    if len(ways) > 2:
        # What three groups can be is too much to try: every third is enough.
        ways[2] = ways[2][::3]
        ways[1] = ways[1][::2]
    for chosen in itertools.product(*ways):
        planes: Counter[int] = Counter()
        for counts, _ in chosen:
            planes |= counts
        page = sum(width * number for width, number in planes.items())
        if page <= limits.largest_page:
            held = page * sum(d.blocks / b for d, (_, b) in zip(demands, chosen, strict=True))
            best = min(best, limits.price(held, page, len(demands)))
    return best


LIMITS = Limits(10**7, 10**5)
UNIT = 32


def demand(block_bytes: int, blocks: int, unit: int = UNIT) -> Demand:
    return Demand(((block_bytes, 1),), blocks, unit)


def random_rows(rng: random.Random) -> list[Demand]:
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
        demands = random_rows(rng)
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
        demands = random_rows(rng)[:2]
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
