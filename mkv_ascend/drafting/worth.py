# SPDX-License-Identifier: Apache-2.0
"""Whether a draft is worth its passes, by what the target accepts of it.

The target's tokens are right whatever a draft proposes. So a draft with NaN in its weights, of
another revision or for another target costs time and nothing shows it.
"""

from __future__ import annotations

from typing import NamedTuple

PROPOSALS = 1000
"""Verified proposals after which a draft is judged, and judged again after as many."""
LEAST = 0.02
"""Accepted share of draft tokens under which a draft is called worthless.

A draft that knows nothing of its target still meets it now and then: by chance one of thousands of
tokens, and more where a text repeats one.
"""


class Worthless(NamedTuple):
    """What a draft is called worthless for: of so many proposals and tokens, few were accepted."""

    proposals: int
    tokens: int
    accepted: int


class DraftWorth:
    """Counts accepted draft tokens of an engine, and finds once that its draft is worthless.

    Args:
        proposals: verified ones after which the draft is judged.
        least: share of accepted tokens.
    """

    def __init__(self, proposals: int = PROPOSALS, least: float = LEAST) -> None:
        self._proposals = proposals
        self._least = least
        self._verified = self._tokens = self._accepted = 0
        self._is_found = False

    def note(self, number: int, accepted: int) -> Worthless | None:
        """Count one proposal of ``number`` tokens; what is found, once if at all."""
        if self._is_found or not number:
            return None
        self._verified += 1
        self._tokens += number
        self._accepted += accepted
        if self._verified < self._proposals:
            return None
        found = Worthless(self._verified, self._tokens, self._accepted)
        self._verified = self._tokens = self._accepted = 0
        if found.accepted >= self._least * found.tokens:
            return None
        self._is_found = True
        return found
