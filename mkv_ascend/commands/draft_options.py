# SPDX-License-Identifier: Apache-2.0
"""How commands name a way to draft: ``[METHOD=]DIR``, or a method that needs no folder."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path

__all__ = [
    *("LOOK_UP", "METHODS", "DraftOptionError"),
    *("add_arguments", "is_method", "split_draft", "ways_to_draft"),
]

LOOK_UP = ("ngram", "suffix")
WITHOUT_A_DRAFT = ("mtp", *LOOK_UP)
"""Methods that need no folder but the target's."""
METHODS = ("draft_model", "eagle", "eagle3", "dflash", "dspark", *WITHOUT_A_DRAFT)


METHOD = re.compile(r"[a-z][a-z0-9_]*")
PREDICTORS = "_mtp"
"""How vLLM's own names of predictors end; it takes each of them for ``mtp``."""


def split_draft(text: str) -> tuple[str, str]:
    """Method, empty where none is named, and folder of ``[METHOD=]DIR``.

    Any word is a method: which there are is for vLLM to say. A folder's name may have a sign, too.
    """
    method, sign, folder = text.partition("=")
    if not sign or not METHOD.fullmatch(method) or Path(text).exists():
        return "", text
    return method, folder


def is_method(word: str) -> bool:
    """Whether a word without a folder can only be a method."""
    known = word in (*METHODS, "medusa", "ngram_gpu") or word.endswith(PREDICTORS)
    return known and METHOD.fullmatch(word) is not None and not Path(word).exists()


def _our_name(method: str) -> str:
    return "mtp" if method.endswith(PREDICTORS) else method


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
        type=_our_name,
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
    method, folder = split_draft(text)
    method = _our_name(method)
    if method and method not in METHODS:
        raise DraftOptionError(
            f"--draft {text}: {method} is no method that is compared. Possible: "
            f"{', '.join(METHODS)}, and vLLM's own names that end with {PREDICTORS}. Change the "
            "word before the sign"
        )
    if not method:
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
