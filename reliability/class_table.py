# SPDX-License-Identifier: Apache-2.0
"""What ``pairs --each`` found, kept as the table of ``docs/text_classes.json``."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path

ROLES = ("target", "draft")
CODE = re.compile(r"\[([a-z-]+)\]")
"""Of a refusal, which docs/refusals.md has in full."""
Row = dict[str, dict[str, str]]
"""``target`` and ``draft`` -> ``result`` and ``reason``."""


def keep(path: Path, column: str, found: Iterable[tuple[str, str, str, str]]) -> None:
    """Write one host's and runner's ``column`` of the table; others stay as they are.

    ``found``: family, role, result and reason.
    """
    table: dict[str, dict[str, Row]] = {}
    if path.exists():
        table = json.loads(path.read_text(encoding="utf-8"))
    rows: dict[str, Row] = {}
    for family, role, result, reason in found:
        rows.setdefault(family, {})[role] = {"result": result, "reason": _short(reason)}
    table[column] = rows
    path.write_text(json.dumps(table, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def _short(reason: str) -> str:
    """The codes of a refusal; of other words the first sentence."""
    if codes := CODE.findall(reason):
        return ", ".join(dict.fromkeys(codes))
    first, *_ = re.split(r"; |\. |\n", reason)
    return first.rpartition("has no tiny form here: ")[2]
