# SPDX-License-Identifier: Apache-2.0
"""docs/troubleshooting.md: every refusal, every warning of ours, commands that a shell can read."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import refusal_pages

from tests.support.rule_cases import REFUSED

ROOT = Path(__file__).resolve().parents[3]
PASSED_ON = {"early_check.py", "layers.py"}
"""Files with a warning whose text is made elsewhere."""


@pytest.fixture(scope="module")
def page() -> str:
    return (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")


def warnings_of_ours() -> Iterator[tuple[str, str]]:
    """File name, format of each warning."""
    for path in (ROOT / "mkv_ascend").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in ("warning", "error", "exception", "critical")
                and getattr(node.func.value, "id", "") == "logger"
            ):
                words = node.args[0]
                text = words.value if isinstance(words, ast.Constant) else "%s"
                yield path.name, str(text)


def test_every_warning_is_explained(page: str) -> None:
    table = page.partition("## Warnings in the log")[2].partition("\n## ")[0]
    explained = [row.split("|")[1].strip(" `") for row in table.splitlines() if row[:3] == "| `"]
    # A row has "..." where the format has a value; what follows the last one need not be there.
    patterns = [".*".join(re.escape(part) for part in row.split("...")) for row in explained]
    used = set()
    for file, text in warnings_of_ours():
        if text == "%s" and file in PASSED_ON:
            continue
        found = [pattern for pattern in patterns if re.match(pattern, text)]
        assert found, f"{file}: {text!r} is not in the table"
        used.update(found)
    assert used == set(patterns), "a row of the table is no warning any more"


def test_every_code_has_a_section(page: str) -> None:
    meanings = refusal_pages.meanings_of((ROOT / "docs" / "check.md").read_text(encoding="utf-8"))
    sections = re.findall(r"^### `([a-z-]+)`$", page, flags=re.MULTILINE)
    assert sections == list(meanings)
    assert {code for code, _ in REFUSED.values()} <= set(sections)


def test_a_code_has_one_example_at_most(page: str) -> None:
    sections = page.partition("## Refusals by code")[2].split("\n### ")[1:]
    shown = {part.partition("\n")[0].strip("`"): part.count("```text") for part in sections}
    assert shown == {code: code in {case for case, _ in REFUSED.values()} for code in shown}
