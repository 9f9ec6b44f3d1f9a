# SPDX-License-Identifier: Apache-2.0
"""Whether the memory of a server's processes stays level under load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import linear_regression

__all__ = ["MOST", "growth", "problems", "told"]

MOST = 1.0
"""MB an hour by which a process may grow behind its warm-up."""
LEAST_SECONDS = 1500
"""Less is too short to tell: a step of malloc's heap, of half an MB or so, would be a slope."""
WARM_UP = 4
"""One of so many looks, the first ones, in which caches fill."""


def growth(
    times: Sequence[float], memory: Sequence[Mapping[str, float]]
) -> dict[str, tuple[float, float]]:
    """Of each process that is there at the end: MB an hour, and the seconds they are told from.

    The slope of the straight line with the least squares, behind the warm-up.

    Args:
        times: of each look, in seconds.
        memory: MB of each process, in the last looks as many as there are times.
    """
    looks = list(zip(times, memory[len(memory) - len(times) :], strict=True))
    found = {}
    for name in memory[-1] if looks else ():
        seen = [(time, held[name]) for time, held in looks if name in held]
        seen = seen[len(seen) // WARM_UP :]
        if len(seen) >= 3:
            slope = linear_regression(*zip(*seen, strict=True)).slope
            found[name] = (slope * 3600, seen[-1][0] - seen[0][0])
    return found


def told(grown: Mapping[str, tuple[float, float]]) -> list[str]:
    """A line for each process."""
    return [
        f"{name}: {more:+.2f} MB an hour, from {seconds / 60:.0f} minutes"
        for name, (more, seconds) in grown.items()
    ]


def problems(grown: Mapping[str, tuple[float, float]]) -> list[str]:
    """Each process that was looked at for long enough and grew by too much."""
    return [
        f"{name} grew by {more:.1f} MB an hour for {seconds / 60:.0f} minutes; at most {MOST}"
        for name, (more, seconds) in grown.items()
        if more > MOST and seconds >= LEAST_SECONDS
    ]
