# SPDX-License-Identifier: Apache-2.0
"""How a configuration is refused: one sentence for vLLM's command, an exception for a program."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NoReturn

from mkv_ascend.plugin.versions import StartUpRefused


def refuse(error: ValueError) -> NoReturn:
    """End vLLM's own command with the message alone; give the error to any other program.

    A user of ``vllm serve`` needs the sentence, not the stack of vLLM's argument handling. A
    program that calls ``vllm.LLM`` needs an exception that it can catch.

    Raises:
        StartUpRefused: in vLLM's command.
        ValueError: elsewhere, ``error`` itself.
    """
    if is_vllm_command():
        raise StartUpRefused(str(error)) from None
    raise error


def is_vllm_command() -> bool:
    """Whether this process is ``vllm serve`` or another command of vLLM's own."""
    specification = getattr(sys.modules.get("__main__"), "__spec__", None)
    if specification is not None:
        return str(specification.name).startswith("vllm.entrypoints.")
    return Path(sys.argv[0]).name == "vllm"
