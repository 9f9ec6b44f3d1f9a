# SPDX-License-Identifier: Apache-2.0
"""Which of several regular expressions is the most specific for a layer name."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Any

from mkv_ascend.attention.matching import REPEATS, matches_whole, parser


def matches(pattern: str, layer_name: str) -> bool:
    """Whether ``pattern`` matches the whole layer name; PatternError when it cannot be served."""
    return matches_whole(pattern, layer_name)


@functools.cache
def literal_characters(pattern: str) -> int:
    """How many literal characters every match of ``pattern`` holds at least.

    Characters outside of sets count once; a repeat counts as often as it must occur; of
    alternatives the poorest counts; look-around, ``.`` and sets count nothing. What is refused of
    patterns (``matching.REFUSED``) is not looked into.
    """
    return _count(parser.parse(pattern))


def _count(parsed: Any) -> int:
    total = 0
    for operation, argument in parsed:
        name = str(operation)
        if name == "LITERAL":
            total += 1
        elif name == "SUBPATTERN":
            total += _count(argument[-1])
        elif name == "BRANCH":
            total += min(_count(alternative) for alternative in argument[1])
        elif name in REPEATS:
            total += int(argument[0]) * _count(argument[2])
    return total


def specificity(pattern: str, layer_name: str) -> tuple[bool, int]:
    """The order of patterns for one layer; the greatest wins.

    First a pattern that is the layer's name itself (its dots escaped or not), then the one with
    more literal characters.
    """
    return pattern in (layer_name, re.escape(layer_name)), literal_characters(pattern)


def most_specific(patterns: Sequence[str], layer_name: str) -> tuple[str, ...]:
    """The most specific of the matching patterns, in the order given."""
    matching = [pattern for pattern in patterns if matches(pattern, layer_name)]
    if not matching:
        return ()
    best = max(specificity(pattern, layer_name) for pattern in matching)
    return tuple(p for p in matching if specificity(p, layer_name) == best)
