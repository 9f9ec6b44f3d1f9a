# SPDX-License-Identifier: Apache-2.0
"""How a configuration is refused: one sentence for vLLM's command, an exception for a program."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NoReturn

from mkv_ascend.plain_text import shortened

_stands_for_command = False


class StartUpRefused(SystemExit):
    """A start-up condition that must stop the process and cannot be swallowed.

    vLLM drops every ``Exception`` that a platform plugin raises and then runs without the
    plugin. ``SystemExit`` is not an ``Exception``: the process ends with the message on stderr,
    exit status 1 and no traceback.
    """

    def __init__(self, message: str, error: ValueError | None = None) -> None:
        super().__init__(shortened(f"mkv_ascend: {message}"))
        self.error = error


def refuse(error: ValueError) -> NoReturn:
    """End vLLM's own command with the message alone; give the error to any other program.

    A user of ``vllm serve`` needs the sentence, not the stack of vLLM's argument handling. A
    program that calls ``vllm.LLM`` needs an exception that it can catch.

    Raises:
        StartUpRefused: in vLLM's command.
        ValueError: elsewhere, ``error`` itself.
    """
    if is_vllm_command() or _stands_for_command:
        raise StartUpRefused(str(error), error) from None
    raise error


def stand_for_command() -> None:
    """Let ``refuse`` end this process's judgement as it would end vLLM's own command."""
    global _stands_for_command
    _stands_for_command = True


def is_vllm_command() -> bool:
    """Whether this process is ``vllm serve`` or another command of vLLM's own."""
    specification = getattr(sys.modules.get("__main__"), "__spec__", None)
    if specification is not None:
        return str(specification.name).startswith("vllm.entrypoints.")
    return Path(sys.argv[0]).name == "vllm"
