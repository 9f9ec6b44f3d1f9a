# SPDX-License-Identifier: Apache-2.0
"""The command ``mkv-ascend``.

A sub-command is a module of mkv_ascend.commands with ``HELP`` (a line), ``add_arguments(parser)``,
``run(arguments) -> exit status`` and, where it has other names, ``ALIASES``. Such a module imports
torch and vLLM in ``run`` at the earliest, so that ``--help`` is quick and works anywhere.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import importlib
import os
import select
import sys
from collections.abc import Sequence
from typing import Any

import mkv_ascend
from mkv_ascend.plain_text import PlainStream

DESCRIPTION = "Any draft model for any target model on Ascend NPUs: a vLLM platform plugin."

COMMANDS = {
    "advise": "mkv_ascend.commands.advise",
    "check": "mkv_ascend.commands.check",
    "doctor": "mkv_ascend.commands.doctor",
    "emulate": "mkv_ascend.commands.emulate",
    "schema": "mkv_ascend.commands.schema",
}
"""Sub-command -> its module."""

DISTRIBUTIONS = {
    "vllm_ascend": "vllm-ascend",
    "yaml": "pyyaml",
}
"""Module -> what pip is to install for it, where the names differ."""

EXIT_MODULE_MISSING = 2
EXIT_READER_LEFT = 141
"""What shells report of a program that SIGPIPE has ended."""
EXIT_NO_SPACE = 1
EXIT_UNREADABLE = 2
NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
"""Of a disk or a quota that is full."""


def build_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    parser = argparse.ArgumentParser(prog="mkv-ascend", description=DESCRIPTION)
    parser.add_argument(
        "--version", action="version", version=f"mkv-ascend {mkv_ascend.__version__}"
    )
    subparsers = parser.add_subparsers(dest="command_name", required=True, metavar="COMMAND")
    for name, module_name in COMMANDS.items():
        module = importlib.import_module(module_name)
        aliases = getattr(module, "ALIASES", ())
        subparser = subparsers.add_parser(name, aliases=aliases, help=module.HELP)
        module.add_arguments(subparser)
        subparser.set_defaults(run=module.run)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    out: Any = PlainStream(sys.stdout, is_for_people=False)
    err: Any = PlainStream(sys.stderr, is_for_people=True)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        return _run(words)


def _run(words: Sequence[str]) -> int:
    parsed = build_parser().parse_args(words)
    try:
        status = int(parsed.run(parsed))
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        if not _reader_left():
            raise
        _print_no_more()
        return EXIT_READER_LEFT
    except ModuleNotFoundError as error:
        name = (error.name or "").partition(".")[0]
        if name in ("", "mkv_ascend", "emulated_npu"):
            raise
        sys.stderr.write(
            f"mkv-ascend {parsed.command_name}: needs {name}, which is not installed here: "
            f"pip install {DISTRIBUTIONS.get(name, name)}\n"
        )
        return EXIT_MODULE_MISSING
    except OSError as error:
        if error.errno is None:
            raise
        is_full = error.errno in NO_SPACE
        if is_full:
            _print_no_more()
        where = error.filename or "what it prints or writes"
        sys.stderr.write(f"mkv-ascend {parsed.command_name}: {where}: {error.strerror}\n")
        return EXIT_NO_SPACE if is_full else EXIT_UNREADABLE


def _print_no_more() -> None:
    """Drop what is not printed yet: Python flushes once more at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _reader_left() -> bool:
    """Whether nobody reads what is printed any more, as behind ``| head``."""
    output = select.poll()
    output.register(sys.stdout, 0)
    return bool(output.poll(0))


if __name__ == "__main__":
    sys.exit(main())
