# SPDX-License-Identifier: Apache-2.0
"""What ``mkv-ascend advise`` compares: a method, its draft, and how often that is accepted."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["LOOK_UP", "METHODS", "Candidate", "CandidateError", "add_arguments", "candidates"]

LOOK_UP = ("ngram", "suffix")
WITHOUT_A_DRAFT = ("mtp", *LOOK_UP)
"""Methods that need no folder but the target's."""
METHODS = ("draft_model", "eagle", "eagle3", "dflash", *WITHOUT_A_DRAFT)


class CandidateError(ValueError):
    """The options name no candidate; the text says what to change."""


@dataclass(frozen=True)
class Candidate:
    """One way to draft.

    Attributes:
        method: of ``METHODS``.
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
    parser.add_argument(
        "--draft",
        action="append",
        default=[],
        metavar="[METHOD=]DIR",
        help="directory of a draft; may be given several times, to compare them",
    )
    parser.add_argument(
        "--method",
        action="append",
        default=[],
        choices=METHODS,
        help="of the draft (draft_model where --draft is given), or one that needs no draft; may "
        "be given several times",
    )
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
    """Drafts in their order, then methods that need none. Raises CandidateError."""
    found: list[tuple[str, Path | None]] = [
        _of_draft(text, arguments.method) for text in arguments.draft
    ]
    taken = {method for method, _ in found}
    found += [(method, None) for method in dict.fromkeys(arguments.method) if method not in taken]
    if not found:
        raise CandidateError(f"give --draft DIR, or --method with one of {', '.join(METHODS)}")
    for method, draft in found:
        if draft is None and method not in WITHOUT_A_DRAFT:
            raise CandidateError(f"--method {method} needs a draft: give --draft DIR")
    shares = _for_each(arguments.acceptance, len(found), "--acceptance")
    lengths = _for_each(arguments.length, len(found), "--length")
    return [
        Candidate(method, draft, share, length)
        for (method, draft), share, length in zip(found, shares, lengths, strict=True)
    ]


def _of_draft(text: str, methods: Sequence[str]) -> tuple[str, Path]:
    """Method and folder of one ``--draft``."""
    method, sign, folder = text.partition("=")
    # A folder's name may have such a sign, too.
    if not sign or method not in METHODS:
        folder = text
        named = list(dict.fromkeys(methods))
        if len(named) > 1:
            raise CandidateError(
                f"--draft {text}: which of the methods {', '.join(named)} is it for? Give "
                f"--draft METHOD={text}"
            )
        method = named[0] if named else "draft_model"
    if method in LOOK_UP:
        raise CandidateError(f"--method {method} has no draft: leave out --draft")
    return method, Path(folder)


def _for_each(given: tuple[float, ...] | None, count: int, option: str) -> Sequence[float | None]:
    """A value for each candidate."""
    if given is None:
        return [None] * count
    if len(given) not in (1, count):
        raise CandidateError(
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
