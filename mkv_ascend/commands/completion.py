# SPDX-License-Identifier: Apache-2.0
"""``mkv-ascend completion``: what a shell reads to complete our commands and their options."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

HELP = "print what a shell needs to complete commands and options"

DESCRIPTION = """\
Prints a script for the shell, made by shtab (pip install shtab):

  bash   mkv-ascend completion bash > ~/.local/share/bash-completion/completions/mkv-ascend
  zsh    mkv-ascend completion zsh > DIRECTORY/_mkv-ascend   (a directory of $fpath)
  tcsh   mkv-ascend completion tcsh > FILE; source FILE
"""

SHELLS = ("bash", "zsh", "tcsh")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The shell."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = DESCRIPTION
    parser.add_argument("shell", choices=SHELLS, help="which shell reads it")


def run(arguments: argparse.Namespace) -> int:
    """Print the script."""
    import shtab

    parser = arguments.command_line
    kinds = {"DIR": shtab.DIRECTORY, "TARGET": shtab.DIRECTORY, "FILE": shtab.FILE}
    for action in _actions(parser):
        if action.metavar in kinds:
            # Where shtab looks for how an argument is completed.
            vars(action)["complete"] = kinds[str(action.metavar)]
    print(shtab.complete(parser, shell=arguments.shell))
    return 0


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Arguments of the parser and of all its commands."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _actions(command)
