# SPDX-License-Identifier: Apache-2.0
"""Memory that stays level, and memory that does not."""

from __future__ import annotations

import pytest

from reliability import levels

HOUR = 3600.0


def looks(*megabytes: float) -> list[dict[str, float]]:
    return [{"engine": value} for value in megabytes]


def test_growth_is_told_in_an_hour_behind_the_warm_up() -> None:
    """Caches of 50 MB fill in the first look of five; then it is 2 MB each half hour."""
    times = [0.5 * HOUR * number for number in range(1, 6)]
    found = levels.growth(times, looks(50, 100, 102, 104, 106))
    assert found == {"engine": (pytest.approx(4.0), pytest.approx(1.5 * HOUR))}
    assert levels.told(found) == ["engine: +4.00 MB an hour, from 90 minutes"]
    (problem,) = levels.problems(found)
    assert problem == "engine grew by 4.0 MB an hour for 90 minutes; at most 1.0"


def test_what_is_level_or_too_short_is_no_problem() -> None:
    assert levels.problems({"engine": (1.0, HOUR), "server": (-2.0, HOUR)}) == []
    assert levels.problems({"engine": (9.0, levels.LEAST_SECONDS - 1)}) == []
    assert levels.problems({"engine": (1.01, levels.LEAST_SECONDS)})


def test_a_process_of_a_server_before_this_one_has_no_say() -> None:
    """A run that goes on has another server; looks before its start have no time."""
    times = [1.0, 2.0, 3.0, 4.0, 5.0]
    before = [{"engine 1": 900.0}, {"engine 1": 901.0}]
    after = [{"engine 2": value} for value in (500.0, 510.0, 510.0, 510.0)]
    found = levels.growth(times, [{"engine 2": 499.0}, *before[1:], *after])
    assert found == {"engine 2": (pytest.approx(0.0), pytest.approx(2.0))}
    assert levels.growth([], [{"engine 2": 499.0}]) == {}
