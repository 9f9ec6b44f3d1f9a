# SPDX-License-Identifier: Apache-2.0
"""Commands of vLLM that only talk to a server, and so need no device of their own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath

__all__ = ["needs_no_device"]

CLIENTS = (("bench", "serve"), ("chat",), ("complete",), ("collect-env",), ("--version",), ("-v",))
"""First words after ``vllm``."""


def needs_no_device(command: Sequence[str]) -> bool:
    """Whether ``sys.argv`` is such a command of ``vllm``, or of ``python -m vllm...cli.main``."""
    program, words = PurePath(command[0] if command else ""), tuple(command[1:])
    is_vllm = program.name == "vllm" or program.parts[-3:] == ("entrypoints", "cli", "main.py")
    return is_vllm and any(words[: len(client)] == client for client in CLIENTS)
