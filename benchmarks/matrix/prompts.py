# SPDX-License-Identifier: Apache-2.0
"""The requests of a cell: eight prompts of mixed lengths whose decoding no near tie decides."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.support import prompts, reference
from tests.support.engine import Result


@dataclass(frozen=True)
class Workload:
    """The requests of a cell, and what an engine must have done with them to show anything.

    Attributes:
        lengths: tokens of each request, ``<bos>`` included, without those in common.
        common: tokens that all requests begin with, ``<bos>`` included.
        decks: whether short requests are decks. A deck goes on as it should only if every key is
            seen and none too many, which in a text a few wrong keys hardly change.
    """

    lengths: tuple[int, ...]
    common: int = 0
    decks: bool = False

    def candidates(self, model: Path, position: int) -> list[list[int]]:
        """Token ids of ``CANDIDATES`` prompts, for the request at ``position``."""
        length, places = self.lengths[position], range(10 * position, 10 * position + CANDIDATES)
        if self.common:
            begin = prompts.held_out_text(PLACE_IN_COMMON, self.common - 1)
            texts = [begin + prompts.held_out_text(place, length) for place in places]
        elif self.decks and length < LONGEST_DECK:
            texts = [prompts.deck_prompts(1, letters=length - 2, seed=place)[0] for place in places]
        else:
            texts = [prompts.held_out_text(place, length - 1) for place in places]
        return [reference.token_ids(model, text) for text in texts]

    def not_shown(self, result: Result) -> list[str]:
        """The fault that what these requests are for did not happen, if it did not.

        Whether requests with a common beginning hit it depends on the size of the family's blocks:
        that is an outcome (``running.NO_HIT``).
        """
        if self.common or result.preempted_contexts:
            return []
        return ["no request was preempted, so that preemption is not shown"]


MIXED = Workload((250, 10, 121, 6, 374, 14, 246, 8), decks=True)
"""Four cross into a new block of 128 tokens while they decode, three of them also into one of 256
or 384. One is preempted."""

COMMON = Workload((1, 60, 14, 27, 8, 90, 33, 74), common=385)
"""Three blocks of 128 tokens in common, or one of 384, and one more token. While the first request
is computed, the others wait; then they begin with its blocks."""

LONGEST_DECK = 20
"""Requests with fewer tokens are decks, where a workload has some."""

PLACE_IN_COMMON = 100
"""Of the text that requests have in common, behind those of their own."""

NEW_TOKENS = 16
"""Tokens that each request generates."""

CANDIDATES = 6
"""Prompts to choose from for each length. A near tie in so few choices is rare."""
