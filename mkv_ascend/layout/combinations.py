# SPDX-License-Identifier: Apache-2.0
"""Whether a sum of given integers, each taken zero or more times, lies in an interval: exactly.

Terms of both signs reach every multiple of their greatest common divisor: what one takes too far
another brings back. Terms of one sign are the coin problem, decided here without trying sums one
by one: the largest coin's count is bounded by the interval, the other two are a congruence.
"""

from __future__ import annotations

import math

__all__ = ["find_combination"]

Counts = tuple[int, int, int]


def find_combination(terms: Counts, low: int, high: int) -> Counts | None:
    """Counts >= 0 whose sum ``count * term`` lies in ``low .. high``; None when there are none."""
    if low > high:
        return None
    if low <= 0 <= high:
        return (0, 0, 0)
    if min(terms) < 0 < max(terms):
        return _of_both_signs(terms, low, high)
    if min(terms) < 0:
        return find_combination((-terms[0], -terms[1], -terms[2]), -high, -low)
    if high < 0:
        return None
    return _of_coins(terms, low, high)


def _of_both_signs(terms: Counts, low: int, high: int) -> Counts | None:
    divisor = math.gcd(*terms)
    total = -(-low // divisor) * divisor
    if total > high:
        return None
    first, left, right = _extended_gcd(terms[0], terms[1])
    both, outer, last = _extended_gcd(first, terms[2])
    scale = total // both
    counts = [scale * outer * left, scale * outer * right, scale * last]
    # Adding |t| of one term and |s| of a term s of the other sign changes no sum.
    for index, count in enumerate(counts):
        if count >= 0:
            continue
        if terms[index] == 0:
            counts[index] = 0
            continue
        partner = next(other for other in range(3) if terms[other] * terms[index] < 0)
        shared = math.gcd(terms[index], terms[partner])
        step = abs(terms[partner]) // shared
        times = -(count // step)
        counts[index] += times * step
        counts[partner] += times * (abs(terms[index]) // shared)
    return (counts[0], counts[1], counts[2])


def _extended_gcd(left: int, right: int) -> Counts:
    """(g, x, y) with g = gcd = x * left + y * right, g >= 0."""
    x, next_x, y, next_y = 1, 0, 0, 1
    while right:
        quotient = left // right
        left, right = right, left - quotient * right
        x, next_x = next_x, x - quotient * next_x
        y, next_y = next_y, y - quotient * next_y
    return (left, x, y) if left >= 0 else (-left, -x, -y)


def _of_coins(coins: Counts, low: int, high: int) -> Counts | None:
    """Coins >= 0, 0 < low."""
    order = sorted(range(3), key=lambda index: -coins[index])
    largest, second, third = (coins[index] for index in order)
    for count in range(high // largest + 1 if largest else 1):
        rest = _of_two_coins(second, third, low - count * largest, high - count * largest)
        if rest is not None:
            found = dict(zip(order, (count, *rest), strict=True))
            return (found[0], found[1], found[2])
    return None


def _of_two_coins(larger: int, smaller: int, low: int, high: int) -> tuple[int, int] | None:
    """``larger >= smaller >= 0``, ``high >= 0``."""
    if low <= 0:
        return (0, 0)
    if larger == 0:
        return None
    if smaller == 0:
        count = -(-low // larger)
        return (count, 0) if count * larger <= high else None
    if high - low + 1 >= larger or low % larger > high % larger or low % larger == 0:
        # A multiple of the larger lies in the interval.
        return (high // larger, 0)
    # The fewest of the smaller leave the most for the larger.
    fewest = _first_in_range(smaller % larger, larger, low % larger, high % larger)
    if fewest is None or fewest * smaller > high:
        return None
    return ((high - fewest * smaller) // larger, fewest)


def _first_in_range(factor: int, modulus: int, low: int, high: int) -> int | None:
    """The least x >= 0 with ``low <= factor * x % modulus <= high``, as in Euclid's algorithm.

    ``0 <= factor < modulus``, ``0 <= low <= high < modulus``.
    """
    if low == 0:
        return 0
    if factor == 0:
        return None
    count = -(-low // factor)
    if count * factor <= high:
        return count
    # No multiple of the factor lies in the range: x needs y turns around the modulus.
    turns = _first_in_range(modulus % factor, factor, -high % factor, -low % factor)
    return None if turns is None else -(-(low + modulus * turns) // factor)
