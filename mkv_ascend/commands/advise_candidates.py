# SPDX-License-Identifier: Apache-2.0
"""What ``mkv-ascend advise`` compares: methods, their drafts, and what vLLM says of each."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mkv_ascend.advice.prediction import acceptance_of
from mkv_ascend.commands import host_process
from mkv_ascend.commands.command_words import LOOK_UP, METHODS, PREDICTORS, split_draft
from mkv_ascend.rules.refusal import Refusal, text_of

WITHOUT_A_DRAFT = ("mtp", *LOOK_UP)
"""Methods that need no folder but the target's."""
EXIT_REFUSED, EXIT_UNREADABLE = 1, 2


class AdviceError(ValueError):
    """Why there is no prediction; ``status``: the command's exit status."""

    def __init__(self, words: str, status: int = EXIT_UNREADABLE) -> None:
        super().__init__(words)
        self.status = status


@dataclass(frozen=True)
class Candidate:
    """One way to draft. ``draft``: its folder; None where the method needs none.

    ``acceptance``: chance of a draft token to be accepted if all before it were; None where
    ``length``, mean tokens of a step, is given.
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
        type=_our_name,
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
    """Drafts in their order, then methods that need none. Raises AdviceError."""
    found = ways_to_draft(arguments.draft, arguments.method)
    shares = _for_each(arguments.acceptance, len(found), "--acceptance")
    lengths = _for_each(arguments.length, len(found), "--length")
    return [
        Candidate(method, draft, share, length)
        for (method, draft), share, length in zip(found, shares, lengths, strict=True)
    ]


def ways_to_draft(drafts: Sequence[str], methods: Sequence[str]) -> list[tuple[str, Path | None]]:
    """Method and folder of each draft in their order, then methods that need none.

    Raises AdviceError.
    """
    found: list[tuple[str, Path | None]] = [_of_draft(text, methods) for text in drafts]
    taken = {method for method, _ in found}
    found += [(method, None) for method in dict.fromkeys(methods) if method not in taken]
    if not found:
        raise AdviceError(f"give --draft DIR, or --method with one of {', '.join(METHODS)}")
    for method, draft in found:
        if draft is None and method not in WITHOUT_A_DRAFT:
            raise AdviceError(f"--method {method} needs a draft: give --draft DIR")
    return found


def _of_draft(text: str, methods: Sequence[str]) -> tuple[str, Path]:
    method, folder = split_draft(text)
    method = _our_name(method)
    if method and method not in METHODS:
        raise AdviceError(
            f"--draft {text}: {method} is no method that is compared. Possible: "
            f"{', '.join(METHODS)}, and vLLM's own names that end with {PREDICTORS}. Change the "
            "word before the sign"
        )
    named = list(dict.fromkeys(methods))
    if not method and len(named) > 1:
        raise AdviceError(
            f"--draft {text}: which of the methods {', '.join(named)} is it for? Give "
            f"--draft METHOD={text}"
        )
    method = method or (named[0] if named else "draft_model")
    if method in LOOK_UP:
        raise AdviceError(f"--method {method} has no draft: leave out --draft")
    return method, Path(folder)


def _our_name(method: str) -> str:
    return "mtp" if method.endswith(PREDICTORS) else method


def _for_each(given: tuple[float, ...] | None, count: int, option: str) -> Sequence[float | None]:
    """A value for each candidate."""
    if given is None:
        return [None] * count
    if len(given) not in (1, count):
        raise AdviceError(
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


def acceptance_in(arguments: argparse.Namespace, candidate: Candidate) -> float:
    """The chance of a draft token to be accepted, also where a length is given for it."""
    if candidate.acceptance is not None:
        return candidate.acceptance
    if arguments.tokens is None:
        raise AdviceError("--length needs --tokens K, the draft tokens that it was seen with")
    assert candidate.length is not None
    try:
        return acceptance_of(candidate.length, arguments.tokens)
    except ValueError as error:
        raise AdviceError(f"--length {candidate.length}: {error}") from error


def judged(arguments: argparse.Namespace, candidate: Candidate) -> dict[str, Any]:
    """What ``mkv-ascend check`` says of the pair, whatever memory a device has.

    Raises AdviceError with its words where it is refused; ProcessError where vLLM is not asked.
    """
    words = [os.path.abspath(arguments.target), "--tensor-parallel-size", str(arguments.tp)]
    words += ["--max-model-len", str(arguments.context)]
    if arguments.async_scheduling is not None:
        words.append(f"--{'' if arguments.async_scheduling else 'no-'}async-scheduling")
    # Lookups need nothing of the models, and packages that a server has.
    if candidate.method in LOOK_UP:
        if arguments.async_scheduling:
            raise AdviceError(
                f"vLLM refuses --async-scheduling with method {candidate.method}: leave it out; "
                "steps without a draft are scheduled ahead by themselves"
            )
    else:
        speculation = {"method": candidate.method, "num_speculative_tokens": arguments.tokens or 1}
        if candidate.draft is not None:
            speculation["model"] = os.path.abspath(candidate.draft)
        words += ["--speculative-config", json.dumps(speculation)]
    device = {
        **host_process.THIS,
        "count_is_known": True,
        "memory_bytes": 1 << 50,
        "generation": arguments.chip.upper(),
        "source": f"judged for an Ascend {arguments.chip.upper()}",
    }
    question = {"words": words, "device": device, "plan": False, "works": True}
    answer: dict[str, Any] = host_process.ask(question, {}, "advise")
    if answer["answer"] == "refused":
        refusals = (Refusal(**refusal) for refusal in answer["refusals"])
        raise AdviceError(text_of(refusals), EXIT_REFUSED)
    if answer["answer"] != "served":
        raise AdviceError(answer["problem"])
    return answer
