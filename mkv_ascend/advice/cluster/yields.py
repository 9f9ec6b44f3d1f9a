# SPDX-License-Identifier: Apache-2.0
"""What the verify steps of an answer give, drawn from the chance of a draft token."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from typing import Protocol

import numpy as np

__all__ = ["Yields", "draw_yields"]

DRAWN_AT_ONCE = 1 << 16
"""Steps. A generator gives the same numbers whether they are asked for at once or in parts."""


class Yields(Protocol):
    """What verify steps give, drawn; ``draw_yields`` makes it."""

    def __call__(self, output: int) -> list[int]:
        """Tokens of the verify steps of an answer, summed up step by step."""


def draw_yields(acceptance: float, tokens: int, seed: int) -> Yields | None:
    """Each draft token is accepted with this chance if all before it were; None without drafts."""
    if not tokens:
        return None
    drawn = _Drawn(acceptance, tokens, seed)
    # Of a step; as many are drawn at once as a request seldom needs.
    mean = sum(acceptance**count for count in range(tokens + 1))

    def yields(output: int) -> list[int]:
        left, last = output - 1, 0
        found: list[int] = []
        while not found or last < left:
            given = drawn.take(int((left - last) / mean * 1.2) + 4)
            given[0] += last
            found += accumulate(given)
            last = found[-1]
        del found[bisect_left(found, left) + 1 :]
        return found

    return yields


class _Drawn:
    """Tokens of one verify step after the other, of whatever answers."""

    def __init__(self, acceptance: float, tokens: int, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self._refused = 1.0 - acceptance
        self._most = 1 + tokens
        self._given: list[int] = []
        self._next = 0

    def take(self, steps: int) -> list[int]:
        """Of the next so many steps."""
        while len(self._given) - self._next < steps:
            self._given = self._given[self._next :] + self._draw()
            self._next = 0
        self._next += steps
        return self._given[self._next - steps : self._next]

    def _draw(self) -> list[int]:
        if not self._refused:
            return [self._most] * DRAWN_AT_ONCE
        # The first that is not accepted, counted from 1, gives its own token.
        given = self._random.geometric(self._refused, DRAWN_AT_ONCE)
        drawn: list[int] = np.minimum(given, self._most).tolist()
        return drawn
