# SPDX-License-Identifier: Apache-2.0
"""Are sampled tokens distributed as the model says? Tests with exact expectations.

Each token is compared with the model's own probabilities after the tokens before it, so all tokens
of all requests count, whatever their contexts. Both tests give a p-value: the probability that
right tokens look at least as odd. Nothing is tuned: a bound on it is a rate of false alarms.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import torch

FALSE_ALARMS = 1e-6
"""Bound for p-values: one false alarm in a million runs of a test."""


def ranks_p_value(
    probabilities: Sequence[torch.Tensor], tokens: Sequence[int], bins: int = 16, seed: int = 0
) -> float:
    """Chi-square test on where tokens lie in their distributions, ordered from likely to unlikely.

    ``probabilities[i]`` (float32 ``[vocabulary]``) is what ``tokens[i]`` was drawn from. The
    probability of all likelier tokens, plus a uniform share of the token's own, is uniform between
    0 and 1 if the token was drawn so (the randomised probability integral transform).

    Raises:
        ValueError: there are too few tokens for ``bins`` (five expected in each are needed).
    """
    if len(tokens) < 5 * bins:
        raise ValueError(f"{len(tokens)} tokens are too few for {bins} bins; sample {5 * bins}")
    generator = random.Random(seed)
    counts = [0] * bins
    for row, token in zip(probabilities, tokens, strict=True):
        own = float(row[token])
        likelier = float(row[row > own].sum())
        # Equally likely tokens share their stretch: the order among them is arbitrary.
        equal = float(row[row == own].sum())
        place = likelier + generator.random() * equal
        counts[min(int(place * bins), bins - 1)] += 1
    expected = len(tokens) / bins
    statistic = sum((count - expected) ** 2 for count in counts) / expected
    degrees = torch.tensor((bins - 1) / 2, dtype=torch.float64)
    half = torch.tensor(statistic / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(degrees, half))


def events_p_value(probabilities: Sequence[float], happened: Sequence[bool]) -> float:
    """Two-sided test on how many of some events happened, each with its own probability.

    The count less its expectation is a sum of independent steps of known variance, so by the
    central limit theorem it is normal. ``p`` of an event may depend on all events before it.

    Raises:
        ValueError: the variance is under 25, where the normal distribution is no good stand-in.
    """
    variance = sum(p * (1 - p) for p in probabilities)
    if variance < 25:
        raise ValueError(f"the events' variance is {variance:.1f}; sample more, 25 is needed")
    surplus = sum(happened) - sum(probabilities)
    return math.erfc(abs(surplus) / math.sqrt(2 * variance))
