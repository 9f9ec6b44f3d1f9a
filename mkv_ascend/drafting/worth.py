# SPDX-License-Identifier: Apache-2.0
"""Whether a draft is worth its passes, by what the target accepts of it.

The target's tokens are right whatever a draft proposes. So a draft with NaN in its weights, of
another revision or for another target costs time and nothing shows it.
"""

from __future__ import annotations

PROPOSALS = 1000
"""Verified proposals after which a draft is judged, and judged again after as many."""
LEAST = 0.02
"""Accepted share of draft tokens under which a draft is called worthless.

A draft that knows nothing of its target still meets it now and then: by chance one of thousands of
tokens, and more where a text repeats one.
"""


class DraftWorth:
    """Counts accepted draft tokens of an engine, and says once that its draft is worthless.

    Args:
        proposals: verified ones after which the draft is judged.
        least: share of accepted tokens.
    """

    def __init__(self, proposals: int = PROPOSALS, least: float = LEAST) -> None:
        self._proposals = proposals
        self._least = least
        self._verified = self._tokens = self._accepted = 0
        self._has_spoken = False

    def note(self, number: int, accepted: int) -> str | None:
        """Count one proposal of ``number`` tokens; what is to be said, once if at all."""
        if self._has_spoken or not number:
            return None
        self._verified += 1
        self._tokens += number
        self._accepted += accepted
        if self._verified < self._proposals:
            return None
        verified, tokens, found = self._verified, self._tokens, self._accepted
        self._verified = self._tokens = self._accepted = 0
        if found >= self._least * tokens:
            return None
        self._has_spoken = True
        return (
            f"The draft is worthless: of its last {verified} proposals ({tokens} draft tokens) the "
            f"target accepted {found} tokens. Tokens of the target are right, but each step pays "
            "for the draft. Check that the draft's checkpoint is whole and made for this target "
            "(revision, vocabulary, adapter), or serve without --speculative-config. Said once."
        )
