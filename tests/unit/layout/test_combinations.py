# SPDX-License-Identifier: Apache-2.0
"""Sums of integers in an interval, against all sums reached step by step."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mkv_ascend.layout.combinations import find_combination

LARGEST_TERM = 12
LARGEST_BOUND = 40


def reachable(terms: tuple[int, int, int]) -> set[int]:
    """All sums within the bounds.

    The terms of a sum can be put in an order in which no partial sum leaves the bounds by more
    than one term, so nothing is missed by looking only that far.
    """
    limit = LARGEST_BOUND + LARGEST_TERM
    seen, front = {0}, [0]
    while front:
        sums = {value + term for value in front for term in terms}
        front = [value for value in sums - seen if -limit <= value <= limit]
        seen.update(front)
    return seen


term = st.integers(-LARGEST_TERM, LARGEST_TERM)
bound = st.integers(-LARGEST_BOUND, LARGEST_BOUND)


@settings(max_examples=1500, deadline=None)
@given(st.tuples(term, term, term), bound, st.integers(0, 6))
@example((6, 10, 12), 13, 0)
@example((6, -10, 0), 3, 0)
@example((-6, 9, 4), 1, 0)
@example((0, 0, 0), 1, 3)
def test_agrees_with_all_sums(terms: tuple[int, int, int], low: int, width: int) -> None:
    high = min(low + width, LARGEST_BOUND)
    found = find_combination(terms, low, high)
    expected = any(low <= value <= high for value in reachable(terms))
    assert (found is not None) == expected
    if found is not None:
        assert min(found) >= 0
        assert low <= sum(count * each for count, each in zip(found, terms, strict=True)) <= high


@pytest.mark.parametrize(
    ("terms", "low", "high", "reached"),
    [
        # The largest sum that two coprime coins do not give is a * b - a - b.
        ((999_983, 1_000_003, 0), 999_983 * 1_000_003 - 999_983 - 1_000_003, None, False),
        ((999_983, 1_000_003, 0), 999_983 * 1_000_003 - 999_983 - 1_000_003 + 1, None, True),
        ((1 << 40, -(1 << 20), 1 << 30), 1, (1 << 20) - 1, False),
        ((1 << 40, -(1 << 20), 1 << 30), 1, 1 << 20, True),
    ],
)
def test_large_numbers_are_decided_without_trying_them(
    terms: tuple[int, int, int], low: int, high: int | None, reached: bool
) -> None:
    high = low if high is None else high
    found = find_combination(terms, low, high)
    assert (found is not None) == reached
    if found is not None:
        assert low <= sum(count * each for count, each in zip(found, terms, strict=True)) <= high


def test_an_empty_interval_has_no_sum() -> None:
    assert find_combination((1, 1, 1), 1, 0) is None
