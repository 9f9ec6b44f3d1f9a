# SPDX-License-Identifier: Apache-2.0
"""The page of commands has every command and option that a user may write."""

from __future__ import annotations

import argparse

import pytest

import cli_pages
from mkv_ascend import cli


def test_every_command_and_option_is_on_the_page() -> None:
    page = cli_pages.tables()
    for name in cli.COMMANDS:
        assert f"## `mkv-ascend {name}`\n" in page
    for option in ("--draft", "--plan", "--acceptance", "--strict", "--device-memory"):
        assert f"| `{option}`" in page
    assert "Another name: `explain`." in page
    assert "--help" not in page


def test_cells_keep_their_table_and_what_is_hidden_is_not_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def parser() -> argparse.ArgumentParser:
        whole = argparse.ArgumentParser(prog="x")
        command = whole.add_subparsers().add_parser("one", aliases=["two"], help="do it")
        command.add_argument("what", nargs="*", metavar="A | B", help="this | that (%(default)s)")
        command.add_argument("--form", "-f", choices=["a", "b"], default="a", help="(%(default)s)")
        command.add_argument("--flag", action="store_true", help="yes")
        command.add_argument("--secret", help=argparse.SUPPRESS)
        return whole

    monkeypatch.setattr(cli, "build_parser", parser)
    assert cli_pages.tables() == (
        "## `mkv-ascend one`\n\nDo it. Another name: `two`.\n\n"
        "| argument | meaning |\n| --- | --- |\n"
        "| `A \\| B` | this \\| that (None) |\n"
        "| `--form`, `-f` `a, b` | (a) |\n"
        "| `--flag` | yes |"
    )
