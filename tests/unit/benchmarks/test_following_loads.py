# SPDX-License-Identifier: Apache-2.0
"""What K of the load is predicted to cost: the arithmetic, and a bound beside every fixed K."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import following_loads
from benchmarks.following_loads import HEAD, LAUNCHES, QWEN3_06B, QWEN3_8B, Model, Pair

BOUND = 0.03


def test_a_step_is_the_sum_of_its_passes() -> None:
    """By hand: weights are read once per pass, each pass and each update is launched."""
    target, draft = Model(1e9, 10, 0), Model(1e8, 4, 0)
    pair = Pair(target, draft, launches=5, updates=2, acceptance=0.5)
    read = 1 / (1.6 * 2**40 * 0.6)
    expected = 2e9 * read + 3 * 2e8 * read + (10 + 3 * 4 + 5 + 3 * 2) * 5e-6
    assert pair.seconds(1, verified=3, drafted=3) == pytest.approx(expected)
    assert pair.tokens(3) == 1 + 0.5 + 0.25 + 0.125
    # Many tokens are computed for longer than weights are read; the first pass has all rows.
    computed = (2e9 + 2e8) * 512 * 4 / (353.9e12 * 0.7)
    launched = (10 + 3 * 4 + 5 + 3 * 2) * 5e-6
    later = 2 * max(2e8 * read, 2e8 * 512 / (353.9e12 * 0.7))
    assert pair.seconds(512, 3, 3) == pytest.approx(computed + later + launched)


def test_a_fixed_number_costs_what_its_steps_cost() -> None:
    pair = Pair(QWEN3_8B, QWEN3_06B, LAUNCHES, 28, 0.7)
    step = pair.seconds(4, 2, 2) / (4 * pair.tokens(2))
    assert following_loads.cost(pair, ((4, 500),), 2) == pytest.approx(step)


@settings(max_examples=150, deadline=None)
@given(
    st.floats(0.1, 0.95),
    st.sampled_from([QWEN3_06B, HEAD]),
    st.lists(st.tuples(st.sampled_from([1, 2, 8, 32, 64, 128, 256]), st.integers(100, 400)),
             min_size=1, max_size=7),
)  # fmt: skip
def test_the_load_costs_no_more_than_any_fixed_number(
    acceptance: float, draft: Model, phases: list[tuple[int, int]]
) -> None:
    """For phases of a hundred tokens of a request and more, each step before a change included."""
    pair = Pair(QWEN3_8B, draft, LAUNCHES, draft.operators // 12, acceptance)
    trace = [(requests, requests * tokens) for requests, tokens in phases]
    assert following_loads.excess(pair, trace) <= BOUND
