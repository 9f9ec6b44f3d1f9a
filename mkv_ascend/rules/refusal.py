# SPDX-License-Identifier: Apache-2.0
"""A refusal: what was asked, what is possible, what to change."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkv_ascend.rules.facts import Facts


@dataclass(frozen=True)
class Refusal:
    """One thing that cannot be served, in three parts; each is a sentence without its stop.

    ``code``: a name that stays, for programs and for docs/refusals.md.
    """

    code: str
    asked: str
    possible: str
    change: str

    def __str__(self) -> str:
        return f"{self.asked}. Possible: {self.possible}. Change: {self.change}."


Check = Callable[["Facts"], Iterator[Refusal]]


@dataclass(frozen=True)
class Rule:
    """A refusal of one sentence. The parts are functions of the facts where they name values.

    ``when``: whether the facts cannot be served.
    """

    code: str
    when: Callable[[Facts], object]
    asked: str | Callable[[Facts], str]
    possible: str | Callable[[Facts], str]
    change: str

    def __call__(self, facts: Facts) -> Iterator[Refusal]:
        """One refusal, or none."""
        if self.when(facts):
            parts = (self.asked, self.possible)
            asked, possible = (part if isinstance(part, str) else part(facts) for part in parts)
            yield Refusal(self.code, asked, possible, self.change)


class RefusedError(ValueError):
    """A configuration that cannot be served, with every refusal."""

    def __init__(self, refusals: Iterable[Refusal]) -> None:
        self.refusals = tuple(refusals)
        super().__init__(text_of(self.refusals))


def text_of(refusals: Iterable[Refusal]) -> str:
    """One message; of several refusals each has a line of its own."""
    found = list(refusals)
    if len(found) == 1:
        return f"this cannot be served [{found[0].code}]: {found[0]}"
    lines = [f"this cannot be served, for {len(found)} reasons:"]
    return "\n".join([*lines, *(f"- [{refusal.code}] {refusal}" for refusal in found)])
