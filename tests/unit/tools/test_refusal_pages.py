# SPDX-License-Identifier: Apache-2.0
"""docs/refusals.md has every code of a refusal, docs/troubleshooting.md every warning of ours."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.support.rule_cases import REFUSED

ROOT = Path(__file__).resolve().parents[3]
PASSED_ON = {"early_check.py", "layers.py"}
"""Files with a warning whose text is made elsewhere."""


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def sources() -> Iterator[tuple[Path, ast.Module]]:
    """Each file of the package."""
    for path in (ROOT / "mkv_ascend").rglob("*.py"):
        yield path, ast.parse(path.read_text(encoding="utf-8"))


def codes_of_ours() -> set[str]:
    """The codes that rules name where they refuse."""
    return {
        node.args[0].value
        for _, tree in sources()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and getattr(node.func, "id", "") in ("Refusal", "Rule")
        and node.args
        and isinstance(node.args[0], ast.Constant)
    }


def warnings_of_ours() -> Iterator[tuple[str, str]]:
    """File name, format of each warning."""
    for path, tree in sources():
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in ("warning", "error", "exception", "critical")
                and getattr(node.func.value, "id", "") == "logger"
            ):
                words = node.args[0]
                text = words.value if isinstance(words, ast.Constant) else "%s"
                yield path.name, str(text)


def test_every_warning_is_explained() -> None:
    table = page("troubleshooting.md").partition("## Warnings in the log")[2].partition("\n## ")[0]
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


def test_every_code_has_a_section() -> None:
    sections = re.findall(r"^### `([a-z-]+)`$", page("refusals.md"), flags=re.MULTILINE)
    assert len(sections) == len(set(sections))
    assert set(sections) == codes_of_ours() | {code for code, _ in REFUSED.values()}
