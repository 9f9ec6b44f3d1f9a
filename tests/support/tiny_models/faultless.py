# SPDX-License-Identifier: Apache-2.0
"""How many missing keys a model notices that deals decks without a fault."""

from __future__ import annotations

from fractions import Fraction

from tests.support.tiny_models.batches import DECK_LETTERS
from tests.support.tiny_models.sensitivity import PROBE_LETTERS


def faultless_share() -> float:
    """Expected ``sensitivity`` share of such a model: 0.209.

    After ``n`` letters it thinks those left that it did not see, each as likely: ``26 - n``, and
    the one whose key is missing. That one comes first by chance alone, once in ``27 - n`` times.
    The marks before the letters tell nothing, and the last letter's key is never removed.
    """
    deals = len(DECK_LETTERS)
    noticed = sum(
        (Fraction(letters - 1, deals + 1 - letters) for letters in PROBE_LETTERS), Fraction()
    )
    return float(noticed / sum(letters + 1 for letters in PROBE_LETTERS))
