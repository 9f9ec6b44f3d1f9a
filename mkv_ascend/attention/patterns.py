# SPDX-License-Identifier: Apache-2.0
"""Regular expressions of ``attention.layers``: which match a layer's name, and the most specific.

``re`` backtracks: ``(a|a)*b`` takes time exponential in the name's length, and a server would stand
still at start-up. ``re`` has no limit of time or steps, and the module ``regex``, which has one,
takes memory without end for ``(?:a|b|ab){2000000000}``. So a pattern is refused, when the options
are read, if the ways in which it might match exceed ``MOST_WAYS``.
"""

from __future__ import annotations

import functools
import importlib
import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

# The parser of re has no public name, and moved in Python 3.11.
_parser: Any = importlib.import_module("re._parser" if sys.version_info >= (3, 11) else "sre_parse")

MAX_PATTERN_LENGTH = 1000
"""Characters; names of layers have fewer than 100."""
MAX_DEPTH = 50
"""Groups and repeats within each other: ``re`` compiles them recursively."""
MANY = 32
"""Repeats that count of a repeat without end."""
MOST_WAYS = (1 + MANY) ** 5
"""Those of five ``.*``, which ``re`` tries on a layer's name in a second or two."""


class PatternError(ValueError):
    """A pattern that cannot be served; the message completes "the pattern ..."."""


@functools.lru_cache(maxsize=1024)
def read_pattern(text: str) -> re.Pattern[str]:
    """The pattern, or PatternError with what is wrong with it."""
    if len(text) > MAX_PATTERN_LENGTH:
        raise PatternError(f"has {len(text)} characters; at most {MAX_PATTERN_LENGTH} are taken")
    try:
        with warnings.catch_warnings():
            # Of set operations that a later Python may read in another way.
            warnings.simplefilter("ignore", FutureWarning)
            ways = _ways(_parser.parse(text), MAX_DEPTH)
            if ways <= MOST_WAYS:
                return re.compile(text)
    except re.error as error:
        raise PatternError(f"is not a regular expression ({error})") from None
    except OverflowError:
        raise PatternError("repeats too often: the number does not fit into 32 bits") from None
    except RecursionError:
        raise PatternError(f"is nested deeper than {MAX_DEPTH} levels") from None
    raise PatternError(
        "can match a name in too many ways, so that matching might never end; write at most five "
        ".*, and no repeats or alternatives within repeats"
    )


def _ways(parsed: Any, depth: int) -> int:
    """At least in how many ways ``re`` might try to match a part, up to one over ``MOST_WAYS``.

    Raises:
        RecursionError: it is nested deeper than ``depth``.
    """
    if depth < 0:
        raise RecursionError
    ways = 1
    for operation, argument in parsed:
        inner = [_ways(part, depth - 1) for part in _inner_parts(argument)]
        if str(operation) == "BRANCH":
            ways *= sum(inner)
        elif "REPEAT" in str(operation):
            least, most = int(argument[0]), int(argument[1])
            repeats = max(least, min(most, MANY))
            ways *= (1 + repeats) * inner[0] ** min(repeats, MANY)
        else:
            ways *= functools.reduce(int.__mul__, inner, 1)
        ways = min(ways, MOST_WAYS + 1)
    return ways


def _inner_parts(argument: Any) -> Iterator[Any]:
    """The patterns within an operation; none for what matches a character or a place."""
    if isinstance(argument, _parser.SubPattern):
        yield argument
    elif isinstance(argument, tuple | list):
        for part in argument:
            yield from _inner_parts(part)


def matches(pattern: str, layer_name: str) -> bool:
    """Whether ``pattern`` matches the whole layer name; PatternError when it cannot be served."""
    return read_pattern(pattern).fullmatch(layer_name) is not None


def matches_part(pattern: str, layer_name: str) -> bool:
    """Whether it matches with ``.*`` around it; False too where such a pattern is not served."""
    try:
        return matches(f".*(?:{pattern}).*", layer_name)
    except PatternError:
        return False


@functools.cache
def literal_characters(pattern: str) -> int:
    """How many literal characters every match of ``pattern`` holds at least.

    Characters outside of sets count once; a repeat counts as often as it must occur; of
    alternatives the poorest counts; look-around, ``.`` and sets count nothing.
    """
    return _count(_parser.parse(pattern))


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
        elif "REPEAT" in name:
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
