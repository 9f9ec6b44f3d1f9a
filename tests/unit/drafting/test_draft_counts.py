# SPDX-License-Identifier: Apache-2.0
"""Which graphs K by batch size takes, against all ways in which a load can change."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mkv_ascend.drafting.counts import DraftCounts, requests_of_graphs


@pytest.mark.parametrize(
    ("tokens", "each", "most", "expected"),
    [
        ((1, 2, 4, 8, 16), 4, 8, [4, 2, 1]),
        ((12,), 4, 8, [3]),
        ((16, 24), 5, 4, [4]),
        ((1,), 4, 0, []),
    ],
)
def test_graphs_have_the_sizes_of_the_targets(
    tokens: tuple[int, ...], each: int, most: int, expected: list[int]
) -> None:
    assert requests_of_graphs(tokens, each, most) == expected


def test_one_number_for_all_takes_a_graph_of_each_size() -> None:
    shapes = DraftCounts([3] * 9).shapes((4, 8, 32), max_tokens=32)
    assert [tuple(shape) for shape in shapes] == [(1, 3, 3), (2, 3, 3), (8, 3, 3)]


@given(st.lists(st.integers(0, 4), min_size=1, max_size=9))
def test_every_step_that_may_come_has_a_graph_and_no_other(by_requests: list[int]) -> None:
    """Sizes have a graph of the target for every number of requests and K: each step is one."""
    most = len(by_requests)
    counts = DraftCounts([0, *by_requests])
    sizes = sorted({number * each for number in range(1, most + 1) for each in range(1, 6)})
    steps = {
        (now, by_requests[before - 1], by_requests[now - 1])
        for before in range(1, most + 1)
        for now in range(1, before + 1)
    }
    shapes = [tuple(shape) for shape in counts.shapes(sizes, max_tokens=most * 5)]
    assert len(shapes) == len(set(shapes))
    assert set(shapes) == steps


@given(st.lists(st.integers(0, 4), min_size=1, max_size=9), st.sets(st.integers(1, 9)))
def test_padded_steps_have_a_graph_too(by_requests: list[int], padded: set[int]) -> None:
    most = len(by_requests)
    counts = DraftCounts([0, *by_requests])
    sizes = sorted({min(number, most) * each for number in padded for each in range(1, 6)})
    shapes = list(counts.shapes(sizes, max_tokens=most * 5))
    for before in range(1, most + 1):
        for now in range(1, before + 1):
            verified, drafted = by_requests[before - 1], by_requests[now - 1]
            of_target = requests_of_graphs(sizes, verified + 1, most)
            served = [number for number in of_target if number >= now]
            if served:
                assert (min(served), verified, drafted) in shapes
