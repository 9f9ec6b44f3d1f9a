# SPDX-License-Identifier: Apache-2.0
"""Whether tokens that were drawn at random come as often as their probabilities say."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

FEWEST = 200
MOST_DEVIATIONS = 5.0
"""Right draws deviate by more once in 1.7 million runs."""


@dataclass
class Draws:
    """Tokens drawn from distributions that are known.

    The logarithm of a token's probability has a known mean and variance where the token is drawn.
    What it lies above the mean sums up, over tokens of which each is drawn behind those before it,
    to a martingale; its sum over the root of the summed variances is nearly normal. A sampler that
    takes likely tokens too often, as one that accepts too many drafts, moves it up; a wrong
    temperature moves it too.

    Attributes:
        count: tokens.
        excess: what their logarithms of probability lie above the means, summed (nats).
        variance: summed.
    """

    count: int = 0
    excess: float = 0.0
    variance: float = 0.0

    def add(self, log_probabilities: torch.Tensor, drawn: int) -> None:
        """One token.

        Args:
            log_probabilities: of the tokens it was drawn from, shape ``[tokens]``, float.
            drawn: which of these came.
        """
        weights = log_probabilities.exp()
        mean = float(weights @ log_probabilities)
        self.count += 1
        self.excess += float(log_probabilities[drawn]) - mean
        self.variance += float(weights @ (log_probabilities - mean).square())

    def __iadd__(self, other: Draws) -> Draws:
        self.count += other.count
        self.excess += other.excess
        self.variance += other.variance
        return self

    @property
    def deviation(self) -> float:
        """In standard deviations."""
        return self.excess / math.sqrt(self.variance) if self.variance else 0.0

    def problems(self) -> list[str]:
        """What is wrong, if enough were drawn to say so."""
        if self.count < FEWEST or abs(self.deviation) < MOST_DEVIATIONS:
            return []
        kind = "likely" if self.deviation > 0 else "unlikely"
        return [
            f"{self.count} tokens that were drawn at random are too {kind}, "
            f"by {abs(self.deviation):.1f} standard deviations"
        ]
