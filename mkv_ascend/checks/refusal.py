# SPDX-License-Identifier: Apache-2.0
"""A refusal: what was asked, what is possible, what to change."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["Refusal", "RefusedError", "refused", "text_of"]


@dataclass(frozen=True)
class Refusal:
    """One thing that cannot be served, in three parts; each is a sentence without its stop.

    ``code``: a name that stays, for programs and for docs/check.md.
    """

    code: str
    asked: str
    possible: str
    change: str

    def __str__(self) -> str:
        return f"{self.asked}. Possible: {self.possible}. Change: {self.change}."


class RefusedError(ValueError):
    """A command that cannot be served, with every refusal."""

    def __init__(self, refusals: Iterable[Refusal]) -> None:
        self.refusals = tuple(refusals)
        super().__init__(text_of(self.refusals))


def refused(code: str, asked: str, possible: str, change: str) -> RefusedError:
    """The error of one refusal."""
    return RefusedError([Refusal(code, asked, possible, change)])


def text_of(refusals: Iterable[Refusal]) -> str:
    """One message; of several refusals each has a line of its own."""
    found = list(refusals)
    if len(found) == 1:
        return f"this cannot be served [{found[0].code}]: {found[0]}"
    lines = [f"this cannot be served, for {len(found)} reasons:"]
    return "\n".join([*lines, *(f"- [{refusal.code}] {refusal}" for refusal in found)])
