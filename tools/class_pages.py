# SPDX-License-Identifier: Apache-2.0
"""The table of text classes (``docs/text_classes.json``, of ``reliability pairs --each``)."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from pathlib import Path

Table = dict[str, dict[str, dict[str, dict[str, str]]]]
"""Host and runner -> family -> role -> ``result`` and ``reason``."""

PATH = Path(__file__).resolve().parents[1] / "docs" / "text_classes.json"
ROLES = ("target", "draft")
ABSENT = ""
"""The cell of a family that the host's vLLM or transformers lacks."""


def tables() -> str:
    """Families down, hosts across, and behind it the words of what does not work."""
    table: Table = json.loads(PATH.read_text(encoding="utf-8"))
    return f"{_grid(table)}\n\n## What does not work\n\n{_reasons(table)}"


def _grid(table: Table) -> str:
    heads = [f"{column}, {role}" for column in table for role in ROLES]
    lines = [["family", *heads], ["---"] * (len(heads) + 1)]
    for family in sorted({family for rows in table.values() for family in rows}):
        cells = [
            rows.get(family, {}).get(role, {}).get("result", ABSENT)
            for rows in table.values()
            for role in ROLES
        ]
        lines.append([family, *cells])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _reasons(table: Table) -> str:
    """One row for each reason, with the families and places that it was said of."""
    places: dict[tuple[str, str], dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for column, rows in table.items():
        for family, row in sorted(rows.items()):
            for role, cell in row.items():
                if cell["reason"]:
                    words = cell["result"], _in_a_cell(cell["result"], cell["reason"])
                    places[words][f"{column}, {role}"].append(family)
    lines = ["| verdict | reason | where |", "| --- | --- | --- |"]
    for (result, reason), found in sorted(places.items()):
        where = "; ".join(f"{place}: {', '.join(families)}" for place, families in found.items())
        lines.append(f"| {result} | {reason} | {where} |")
    return "\n".join(lines)


def _in_a_cell(result: str, reason: str) -> str:
    """Codes of refusals with links to what they say."""
    if result == "refused" and re.fullmatch(r"[a-z-]+(, [a-z-]+)*", reason):
        return ", ".join(f"[{code}](refusals.md#{code})" for code in reason.split(", "))
    return f"`{reason.replace('`', '')}`".replace("|", "\\|")
