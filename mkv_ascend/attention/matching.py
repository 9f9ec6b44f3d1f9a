# SPDX-License-Identifier: Apache-2.0
"""Whether a regular expression matches a layer's name, in bounded time for any expression.

``re`` backtracks: ``(a|a)*b`` takes time exponential in the name's length, and a server would stand
still at start-up. Here the set of all places where a part of the pattern can end is found instead.
For a pattern of P parts and a name of N characters that takes at most about P * N**2 steps. What
single parts mean (sets, categories, case, anchors) is left to ``re``.
"""

from __future__ import annotations

import functools
import importlib
import re
import sys
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

# The parser and compiler of re have no public names, and moved in Python 3.11.
_HAS_PACKAGE = sys.version_info >= (3, 11)
parser: Any = importlib.import_module("re._parser" if _HAS_PACKAGE else "sre_parse")
_compiler: Any = importlib.import_module("re._compiler" if _HAS_PACKAGE else "sre_compile")

MAX_PATTERN_LENGTH = 1000
"""Characters; names of layers have fewer than 100."""
MAX_DEPTH = 50
"""Groups and repeats within each other."""

REFUSED = {
    "GROUPREF": "a back reference",
    "GROUPREF_EXISTS": "a condition on a group",
    "GROUPREF_IGNORE": "a back reference",
    "ATOMIC_GROUP": "an atomic group",
    "POSSESSIVE_REPEAT": "a possessive repeat",
}
"""Operations that depend on the way a match was found, which is not followed here."""

REPEATS = ("MAX_REPEAT", "MIN_REPEAT")
"""Greedy and lazy repeats match the same names as a whole."""


class PatternError(ValueError):
    """A pattern that cannot be served; the message completes "the pattern ..."."""


@dataclass(frozen=True)
class Pattern:
    """A pattern that was read: ``parsed`` by the parser of ``re``, with its global ``flags``."""

    text: str
    parsed: Any
    flags: int


@functools.lru_cache(maxsize=1024)
def read_pattern(text: str) -> Pattern:
    """The pattern, or PatternError with what is wrong with it."""
    if len(text) > MAX_PATTERN_LENGTH:
        raise PatternError(f"has {len(text)} characters; at most {MAX_PATTERN_LENGTH} are taken")
    try:
        with warnings.catch_warnings():
            # Of set operations that a later Python may read in another way.
            warnings.simplefilter("ignore", FutureWarning)
            parsed = parser.parse(text)
    except re.error as error:
        raise PatternError(f"is not a regular expression ({error})") from None
    except OverflowError:
        raise PatternError("repeats too often: the number does not fit into 32 bits") from None
    except RecursionError:
        raise PatternError(f"is nested deeper than {MAX_DEPTH} levels") from None
    _check(parsed, 0)
    return Pattern(text, parsed, int(parsed.state.flags))


def _check(parsed: Iterable[tuple[Any, Any]], depth: int) -> None:
    if depth > MAX_DEPTH:
        raise PatternError(f"is nested deeper than {MAX_DEPTH} levels")
    for operation, argument in parsed:
        refused = REFUSED.get(str(operation))
        if refused is not None:
            raise PatternError(
                f"has {refused}, which is not served: a name is matched in bounded time"
            )
        for part in _inner_parts(str(operation), argument):
            _check(part, depth + 1)


def _inner_parts(name: str, argument: Any) -> Sequence[Any]:
    """The patterns within one operation; none for what matches a character or a place."""
    if name == "BRANCH":
        return tuple(argument[1])
    if name in (*REPEATS, "SUBPATTERN", "ASSERT", "ASSERT_NOT"):
        return (argument[-1],)
    return ()


@functools.lru_cache(maxsize=65536)
def matches_whole(text: str, name: str) -> bool:
    """Whether the pattern ``text`` matches the whole ``name``; as ``re.fullmatch`` would say."""
    pattern = read_pattern(text)
    return len(name) in _Matcher(pattern, name).ends_of(pattern.parsed, 0, pattern.flags)


def matches_part(text: str, name: str) -> bool:
    """Whether the pattern matches some part of ``name``; as ``re.search`` would say."""
    pattern = read_pattern(text)
    matcher = _Matcher(pattern, name)
    return any(
        matcher.ends_of(pattern.parsed, start, pattern.flags) for start in range(len(name) + 1)
    )


class _Matcher:
    """One pattern and one name. What was found out about a part at a place is kept."""

    def __init__(self, pattern: Pattern, name: str) -> None:
        self.state, self.name = pattern.parsed.state, name
        # By identity: the parts live as long as the pattern that holds them.
        self.known: dict[tuple[int, int, int], frozenset[int]] = {}
        self.compiled: dict[tuple[int, int], re.Pattern[str]] = {}

    def ends_of(self, parsed: Any, start: int, flags: int) -> frozenset[int]:
        """Every place where a match of ``parsed`` that begins at ``start`` can end."""
        key = (id(parsed), start, flags)
        if key not in self.known:
            ends = frozenset((start,))
            for part in parsed:
                ends = self.after(part, ends, flags)
            self.known[key] = ends
        return self.known[key]

    def after(self, part: Any, starts: frozenset[int], flags: int) -> frozenset[int]:
        """Every place where one operation can end that begins at one of ``starts``."""
        name, argument = str(part[0]), part[1]
        if name in REPEATS:
            return self.repeated(argument, starts, flags)
        found: set[int] = set()
        for start in starts:
            if name == "SUBPATTERN":
                _, added, removed, inner = argument
                found |= self.ends_of(inner, start, (flags | added) & ~removed)
            elif name == "BRANCH":
                found.update(*(self.ends_of(branch, start, flags) for branch in argument[1]))
            elif name in ("ASSERT", "ASSERT_NOT"):
                if self.holds(argument, start, flags) == (name == "ASSERT"):
                    found.add(start)
            else:
                found |= self.single(part, start, flags)
        return frozenset(found)

    def repeated(self, argument: Any, starts: frozenset[int], flags: int) -> frozenset[int]:
        """Places after the least to the most repeats; places only grow, so both loops end soon."""
        least, most, inner = int(argument[0]), int(argument[1]), argument[2]
        here = starts
        seen: set[frozenset[int]] = set()
        for _ in range(least):
            here = self.once(inner, here, flags)
            # Empty, or going round: a repeat that can be empty keeps its places.
            if not here or here in seen:
                break
            seen.add(here)
        found, new = set(here), here
        for _ in range(min(most - least, len(self.name) + 1)):
            new = self.once(inner, new, flags) - found
            if not new:
                break
            found |= new
        return frozenset(found)

    def once(self, inner: Any, starts: frozenset[int], flags: int) -> frozenset[int]:
        return frozenset().union(*(self.ends_of(inner, start, flags) for start in starts))

    def holds(self, argument: Any, start: int, flags: int) -> bool:
        """Whether a look ahead (1) or behind (-1) is fulfilled at ``start``."""
        direction, inner = argument
        if direction > 0:
            return bool(self.ends_of(inner, start, flags))
        return any(start in self.ends_of(inner, begin, flags) for begin in range(start + 1))

    def single(self, part: Any, start: int, flags: int) -> frozenset[int]:
        """A character, a set or an anchor: what ``re`` says of it alone, at its place."""
        key = (id(part), flags)
        if key not in self.compiled:
            state = parser.State()
            state.flags = flags
            self.compiled[key] = _compiler.compile(parser.SubPattern(state, [part]), flags)
        match = self.compiled[key].match(self.name, start)
        return frozenset() if match is None else frozenset((match.end(),))
