# SPDX-License-Identifier: Apache-2.0
"""Tables of the commands of ``mkv-ascend`` and their options, from their parsers."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from mkv_ascend import cli


def tables() -> str:
    """A section for each command: what it does, then its arguments and options."""
    parser = cli.build_parser()
    (commands,) = (one for one in parser._actions if isinstance(one, argparse._SubParsersAction))
    parts = [part for found in commands._choices_actions for part in _section(commands, found)]
    return "\n\n".join(parts)


def _section(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], command: argparse.Action
) -> Iterator[str]:
    parser = commands.choices[command.dest]
    names = [name for name, other in commands.choices.items() if other is parser]
    yield f"## `mkv-ascend {names[0]}`"
    also = "".join(f" Another name: `{name}`." for name in names[1:])
    yield f"{_sentence(command.help or '')}{also}"
    if rows := list(_rows(parser)):
        yield "\n".join(["| argument | meaning |", "| --- | --- |", *rows])


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


def _rows(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        if action.help == argparse.SUPPRESS or isinstance(action, argparse._HelpAction):
            continue
        yield f"| {_name(action)} | {_help(parser, action)} |"


def _name(action: argparse.Action) -> str:
    """As one writes it: names of an option, and its value."""
    value = ""
    if action.nargs != 0:
        value = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
        if action.choices is not None:
            value = ", ".join(map(str, action.choices))
    names = ", ".join(f"`{name}`" for name in action.option_strings)
    return _cell(" ".join(filter(None, (names, value and f"`{value}`"))))


def _help(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    return _cell((action.help or "") % {**vars(action), "prog": parser.prog})


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
