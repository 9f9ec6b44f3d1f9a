# SPDX-License-Identifier: Apache-2.0
"""What ``mkv-ascend advise`` compares: a method, its draft, and how often that is accepted."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mkv_ascend.commands import draft_options
from mkv_ascend.commands.draft_options import DraftOptionError

__all__ = ["Candidate", "add_arguments", "candidates"]


@dataclass(frozen=True)
class Candidate:
    """One way to draft.

    Attributes:
        method: of ``draft_options.METHODS``.
        draft: its folder; None where the method needs none.
        acceptance: chance of a draft token to be accepted if all before it were; None where
            ``length`` is given.
        length: mean tokens of a step.
    """

    method: str
    draft: Path | None
    acceptance: float | None
    length: float | None

    @property
    def name(self) -> str:
        """For a line of text."""
        return f"{self.method} {self.draft.resolve().name}" if self.draft else self.method


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the options that name candidates."""
    draft_options.add_arguments(parser)
    share = parser.add_mutually_exclusive_group(required=True)
    share.add_argument(
        "--acceptance",
        type=_shares,
        metavar="P[,P...]",
        help="chance of a draft token to be accepted when all before it were; one for all, or one "
        "for each draft and then for each method without one, in their order",
    )
    share.add_argument(
        "--length",
        type=_lengths,
        metavar="L[,L...]",
        help="mean tokens of a step, with --tokens K; one for all, or one for each",
    )


def candidates(arguments: argparse.Namespace) -> list[Candidate]:
    """Drafts in their order, then methods that need none. Raises DraftOptionError."""
    found = draft_options.ways_to_draft(arguments.draft, arguments.method)
    shares = _for_each(arguments.acceptance, len(found), "--acceptance")
    lengths = _for_each(arguments.length, len(found), "--length")
    return [
        Candidate(method, draft, share, length)
        for (method, draft), share, length in zip(found, shares, lengths, strict=True)
    ]


def _for_each(given: tuple[float, ...] | None, count: int, option: str) -> Sequence[float | None]:
    """A value for each candidate."""
    if given is None:
        return [None] * count
    if len(given) not in (1, count):
        raise DraftOptionError(
            f"{option} has {len(given)} values for {count} candidates: give one, or one for each"
        )
    return given * (count // len(given))


def _shares(text: str) -> tuple[float, ...]:
    return tuple(_number(part, 0, 1) for part in text.split(","))


def _lengths(text: str) -> tuple[float, ...]:
    return tuple(_number(part, 0, float("inf")) for part in text.split(","))


def _number(text: str, least: float, most: float) -> float:
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if not least <= number <= most:
        allowed = "from 0 to 1" if most == 1 else "above 0"
        raise argparse.ArgumentTypeError(f"{text!r}; allowed: a number {allowed}")
    return number
