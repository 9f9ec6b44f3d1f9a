# SPDX-License-Identifier: Apache-2.0
"""The requests of a cell: eight prompts of mixed lengths whose decoding no near tie decides."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.support import prompts, reference

LENGTHS = (250, 10, 121, 6, 374, 14, 246, 8)
"""Tokens of each request, ``<bos>`` included: four cross into a new block of 128 tokens while they
decode, three of them also into one of 256 or 384. The short ones are decks."""

NEW_TOKENS = 16
"""Tokens that each request generates."""

CANDIDATES = 6
"""Prompts to choose from for each length. A near tie in so few choices is rare."""


def candidates(
    model: Path, position: int, lengths: Sequence[int] = LENGTHS, decks: bool = True
) -> list[list[int]]:
    """Token ids of ``CANDIDATES`` prompts, for the request at ``position`` of ``lengths``.

    Texts fill blocks; a deck goes on as it should only if every key is seen and none too many,
    which in a text a few wrong keys hardly change. ``decks``: whether short prompts are decks.
    """
    length, places = lengths[position], range(10 * position, 10 * position + CANDIDATES)
    if decks and length < 20:
        texts = [prompts.deck_prompts(1, letters=length - 2, seed=place)[0] for place in places]
    else:
        texts = [prompts.held_out_text(place, length - 1) for place in places]
    return [reference.token_ids(model, text) for text in texts]
