# SPDX-License-Identifier: Apache-2.0
"""``mkv-ascend emulate -- command``: run a command, and its children, on the emulated NPU."""

from __future__ import annotations

import argparse
import sys

from mkv_ascend import envs
from mkv_ascend.commands import emulator

HELP = "run a command on emulated NPUs"

EXIT_REFUSED = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the options of ``mkv-ascend emulate``: those of the emulated NPU's own command."""
    if emulator.is_installed():
        from emulated_npu import command

        command.add_arguments(parser)
        return
    parser.description = f"Runs a command on emulated Ascend NPUs. Here {emulator.HOW_TO_INSTALL}."
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- command")


def run(arguments: argparse.Namespace) -> int:
    """Replace this process by the command; returns only when that is refused."""
    problems = envs.unknown_variables()
    if not emulator.is_installed():
        problems = [emulator.HOW_TO_INSTALL]
    if problems:
        print(f"mkv-ascend emulate: {'; '.join(problems)}", file=sys.stderr)
        return EXIT_REFUSED
    from emulated_npu import command

    return command.run(arguments, "mkv-ascend emulate")
