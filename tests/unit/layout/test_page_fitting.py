# SPDX-License-Identifier: Apache-2.0
"""Planes of a page and blocks in it: beside plain enumeration of numbers."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Sequence

from mkv_ascend.layout.page_fitting import (
    Demand,
    Limits,
    _meetings,
    _Stretches,
    best_fit,
    least_price,
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
