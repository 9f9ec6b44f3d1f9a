# SPDX-License-Identifier: Apache-2.0
"""What of a command line is vLLM's: behind variables, launchers and ``mkv-ascend emulate``.

And what all commands read of their own options: ways to draft, numbers, sizes of memory.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mkv_ascend.commands import emulate

LOOK_UP = ("ngram", "suffix")
METHODS = ("draft_model", "eagle", "eagle3", "dflash", "dspark", "mtp", *LOOK_UP)
METHOD = re.compile(r"[a-z][a-z0-9_]*")
PREDICTORS = "_mtp"
"""How vLLM's own names of predictors end; it takes each of them for ``mtp``."""
LAUNCHERS = ("env", "nohup", "exec", "time")
SERVERS = ("vllm.entrypoints.openai.api_server", "vllm.entrypoints.api_server")
COMMANDS = ("vllm.entrypoints.cli.main", "vllm")
"""Modules that ``python -m`` runs as vLLM's server, and as its command."""
ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
DRAFT_TOKENS = 3
"""Of a proposal where only ``--draft`` is given."""
SPECULATION = re.compile(r"(--speculative[-_]config|-sc)([.=].*)?", re.DOTALL)
BYTE_UNITS = {
    "": 1,
    "B": 1,
    **{unit: 1024 ** (place + 1) for place, unit in enumerate(("KIB", "MIB", "GIB"))},
    **{unit: 1000 ** (place + 1) for place, unit in enumerate(("KB", "MB", "GB"))},
}


class CommandError(ValueError):
    """A command that cannot be read; the text says what can be."""


@dataclass
class Command:
    """``serve``: words behind ``vllm serve``. ``variables``: of its environment. ``emulated``:
    variables of an emulated NPU, empty where the command asks for none."""

    serve: list[str]
    variables: dict[str, str] = field(default_factory=dict)
    emulated: dict[str, str] = field(default_factory=dict)


def read(words: Sequence[str], draft: str | None = None, tokens: int | None = None) -> Command:
    """A start script's line, or a target with options of ``vllm serve``.

    Args:
        draft: ``[METHOD=]DIR``, for ``--speculative-config``.
        tokens: of a proposal.

    Raises:
        CommandError: it is neither.
    """
    rest = list(words)
    found = Command([])
    is_line = rest[:1] == ["--"]
    rest = rest[1:] if is_line else rest
    while rest:
        name = Path(rest[0]).name
        if (assigned := ASSIGNMENT.fullmatch(rest[0])) is not None:
            found.variables[assigned[1]] = assigned[2]
        elif name not in LAUNCHERS:
            break
        rest, is_line = rest[1:], True
    if [Path(word).name for word in rest[:2]] == ["mkv-ascend", "emulate"]:
        found.emulated, rest = _behind_emulate(rest[2:])
        is_line = True
    found.serve = _behind_serve(rest, is_line)
    if draft is not None or tokens is not None:
        if any(SPECULATION.fullmatch(word) for word in found.serve):
            raise CommandError(
                "--draft or --num-speculative-tokens beside vLLM's --speculative-config: both say "
                "how to draft. Possible: one of them. Change: leave the other out"
            )
        found.serve += ["--speculative-config", json.dumps(_speculation(draft, tokens))]
    return found


def _behind_emulate(words: list[str]) -> tuple[dict[str, str], list[str]]:
    if not emulate.is_installed():
        raise CommandError(emulate.HOW_TO_INSTALL)
    from emulated_npu import command
    from emulated_npu.launch import settings_environment
    from emulated_npu.variables import VariableError

    parser = argparse.ArgumentParser(prog="mkv-ascend emulate")
    command.add_arguments(parser)
    given = parser.parse_args(words)
    try:
        settings = command.chosen_settings(given)
    except VariableError as error:
        raise CommandError(str(error)) from error
    return settings_environment(settings), list(command.without_separator(given.command))


def _behind_serve(words: list[str], is_line: bool) -> list[str]:
    name = Path(words[0]).name if words else ""
    if name == "vllm" and words[1:2] == ["serve"]:
        return words[2:]
    if name == "serve":
        return words[1:]
    if re.fullmatch(r"python[\d.]*", name) and words[1:2] == ["-m"] and len(words) > 2:
        if words[2] in SERVERS:
            return words[3:]
        if words[2] in COMMANDS and words[3:4] == ["serve"]:
            return words[4:]
    elif words and not is_line:
        return words
    raise CommandError(
        f"{' '.join(words[:3]) or 'nothing'} is not a command that can be checked: write "
        "-- vllm serve MODEL and its options, or a directory and options of vllm serve"
    )


def _speculation(draft: str | None, tokens: int | None) -> dict[str, Any]:
    found: dict[str, Any] = {"num_speculative_tokens": tokens or DRAFT_TOKENS}
    if draft is None:
        return found
    if _is_method(draft):
        return {**found, "method": draft}
    method, folder = split_draft(draft)
    model = str(Path(folder).resolve()) if Path(folder).exists() else folder
    return {**found, "method": method or "draft_model", "model": model}


def split_draft(text: str) -> tuple[str, str]:
    """Method, empty where none is named, and folder of ``[METHOD=]DIR``.

    Any word is a method: which there are is for vLLM to say. A folder's name may have a sign, too.
    """
    method, sign, folder = text.partition("=")
    if not sign or not METHOD.fullmatch(method) or Path(text).exists():
        return "", text
    return method, folder


def _is_method(word: str) -> bool:
    """Whether a word without a folder can only be a method."""
    known = word in (*METHODS, "medusa", "ngram_gpu") or word.endswith(PREDICTORS)
    return known and METHOD.fullmatch(word) is not None and not Path(word).exists()


def positive(text: str) -> int:
    """A whole number from 1 on.

    Raises:
        argparse.ArgumentTypeError: it is none; with what is allowed.
    """
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}; allowed: a whole number from 1 on")
    return int(text)


def memory_size(text: str) -> int:
    """Bytes of ``64GiB``, ``512 MiB`` or ``1048576``: at least 1, and exact.

    Raises:
        argparse.ArgumentTypeError: it cannot be read, or is a fraction; with what is allowed.
    """
    match = re.fullmatch(r"([0-9]+)\s*([A-Za-z]*)", text.strip())
    unit = match and BYTE_UNITS.get(match.group(2).upper())
    if match is None or unit is None or int(match.group(1)) == 0:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a number of bytes; allowed: a whole number over 0 with an optional "
            "unit B, KiB, MiB, GiB, KB, MB or GB"
        )
    return int(match.group(1)) * unit
