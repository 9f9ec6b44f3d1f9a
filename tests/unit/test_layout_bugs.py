# SPDX-License-Identifier: Apache-2.0
"""The table of layout bugs has a row for each, and names tests that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
NUMBER_OF_BUGS = 17


def rows() -> list[list[str]]:
    """The cells of the table's rows."""
    lines = (TESTS / "layout_bugs.md").read_text(encoding="utf-8").splitlines()
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in lines
        if re.match(r"\| \d+ \|", line)
    ]


def functions_of(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_every_bug_has_a_row() -> None:
    assert [int(row[0]) for row in rows()] == list(range(1, NUMBER_OF_BUGS + 1))


def test_the_tests_exist() -> None:
    named = {cell for row in rows() for cell in row[3:]} - {"missing"}
    assert len(named) > 5
    for name in sorted(named):
        file, _, function = name.partition("::")
        assert function in functions_of(TESTS / file), name
