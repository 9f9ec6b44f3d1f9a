# SPDX-License-Identifier: Apache-2.0
"""Every refusal is documented, tried by a mistake, and made of three parts."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from mkv_ascend.checks.refusal import Refusal, RefusedError
from tests.support.mistakes import MISTAKES

REPOSITORY = Path(__file__).resolve().parents[3]
UNTRIED = {"draft-adapter", "draft-caches", "draft-option", "executor", "kept-states", "runner"}
"""Codes of test_draft_options.py, test_speculation.py, test_host_rules.py and test_runner_v2.py."""


def codes_in_the_code() -> set[str]:
    """First arguments of ``Refusal`` and of ``refused``."""
    found = set()
    for path in (REPOSITORY / "mkv_ascend" / "checks").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args:
                first = node.args[0]
                if node.func.id in ("Refusal", "refused") and isinstance(first, ast.Constant):
                    found.add(str(first.value))
    return found


def test_every_code_is_documented_and_no_other() -> None:
    page = (REPOSITORY / "docs" / "check.md").read_text()
    rows = page.partition("## What is refused")[2].splitlines()
    cells = [row.split("|")[1] for row in rows if row.startswith("| `")]
    assert {code for cell in cells for code in re.findall(r"`([a-z-]+)`", cell)} == (
        codes_in_the_code()
    )


def test_every_code_is_tried() -> None:
    tried = {code for mistake in MISTAKES for code in mistake.codes}
    assert tried | UNTRIED == codes_in_the_code()


def test_one_refusal_is_a_sentence_and_several_are_a_list() -> None:
    one = Refusal("a", "x is 3", "1 or 2", "write 1")
    words = "x is 3. Possible: 1 or 2. Change: write 1."
    assert str(RefusedError([one])) == f"this cannot be served [a]: {words}"
    two = str(RefusedError([one, Refusal("b", "y is 4", "5", "write 5")]))
    assert two.splitlines()[0] == "this cannot be served, for 2 reasons:"
    assert two.splitlines()[1] == f"- [a] {words}"
