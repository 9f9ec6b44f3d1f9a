# SPDX-License-Identifier: Apache-2.0
"""The options ``--draft`` and ``--method`` of commands that compare ways to draft."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

__all__ = ["LOOK_UP", "METHODS", "DraftOptionError", "add_arguments", "ways_to_draft"]

LOOK_UP = ("ngram", "suffix")
WITHOUT_A_DRAFT = ("mtp", *LOOK_UP)
"""Methods that need no folder but the target's."""
METHODS = ("draft_model", "eagle", "eagle3", "dflash", "dspark", *WITHOUT_A_DRAFT)


class DraftOptionError(ValueError):
    """The options name no way to draft; the text says what to change."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe both options, each of which may be given several times."""
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


def ways_to_draft(drafts: Sequence[str], methods: Sequence[str]) -> list[tuple[str, Path | None]]:
    """Method and folder of each draft in their order, then methods that need none.

    Raises DraftOptionError.
    """
    found: list[tuple[str, Path | None]] = [_of_draft(text, methods) for text in drafts]
    taken = {method for method, _ in found}
    found += [(method, None) for method in dict.fromkeys(methods) if method not in taken]
    if not found:
        raise DraftOptionError(f"give --draft DIR, or --method with one of {', '.join(METHODS)}")
    for method, draft in found:
        if draft is None and method not in WITHOUT_A_DRAFT:
            raise DraftOptionError(f"--method {method} needs a draft: give --draft DIR")
    return found


def _of_draft(text: str, methods: Sequence[str]) -> tuple[str, Path]:
    method, sign, folder = text.partition("=")
    # A folder's name may have such a sign, too.
    if not sign or method not in METHODS:
        folder = text
        named = list(dict.fromkeys(methods))
        if len(named) > 1:
            raise DraftOptionError(
                f"--draft {text}: which of the methods {', '.join(named)} is it for? Give "
                f"--draft METHOD={text}"
            )
        method = named[0] if named else "draft_model"
    if method in LOOK_UP:
        raise DraftOptionError(f"--method {method} has no draft: leave out --draft")
    return method, Path(folder)
