# SPDX-License-Identifier: Apache-2.0
"""Tables of the matrix (``docs/matrix.json``, written by ``make matrix``) for the documentation."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

PATH = Path(__file__).resolve().parents[1] / "docs" / "matrix.json"

WORKS = "works"

NOT_RUN = "not run"

EMPTY = ""
"""The cell of a family without a head of this method."""


def read(path: Path = PATH) -> dict[str, Any]:
    """The matrix as it was measured last."""
    matrix: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return matrix


def grid(matrix: Mapping[str, Any]) -> str:
    """Targets down, drafts across; in each cell ours and, in brackets, stock's outcome."""
    cells = matrix["cells"]
    targets = list(dict.fromkeys(cell["target"] for cell in cells))
    drafts = list(dict.fromkeys(cell["draft"] for cell in cells))
    by_place = {(cell["target"], cell["draft"]): cell for cell in cells}
    lines = [row(["target", *drafts]), row(["---"] * (len(drafts) + 1))]
    for target in targets:
        found = [by_place.get((target, draft)) for draft in drafts]
        lines.append(row([target, *(EMPTY if cell is None else both(cell) for cell in found)]))
    return "\n".join(lines)


def both(cell: Mapping[str, Any]) -> str:
    """Ours and stock's outcome, such as ``works (fails)``."""
    ours = f"**{cell['ours']}**" if cell["ours"] == WORKS else cell["ours"]
    return f"{ours} ({cell['stock']})"


def details(matrix: Mapping[str, Any]) -> str:
    """One line for each cell, with acceptance and reasons."""
    head = ["target", "draft", "method", "ours", "in graphs", "accepted (reference)", "stock"]
    head.append("reason")
    lines = [row(head), row(["---"] * len(head))]
    for cell in matrix["cells"]:
        accepted = EMPTY
        if cell["acceptance"] is not None:
            accepted = f"{cell['acceptance']:.2f} ({cell['reference_acceptance']:.2f})"
        reasons = [cell["reason"]] if cell["reason"] else []
        for side, title in (("graph", "in graphs"), ("stock", "stock")):
            reason = cell.get(f"{side}_reason")
            if reason and reason != cell["reason"]:
                reasons.append(f"{title}: {reason}")
        columns = [cell["target"], cell["draft"], cell["method"], cell["ours"]]
        columns.append(cell["graph"] or NOT_RUN)
        lines.append(row([*columns, accepted, cell["stock"], escaped("; ".join(reasons))]))
    return "\n".join(lines)


def row(columns: Sequence[str]) -> str:
    """One line of a table."""
    return f"| {' | '.join(columns)} |"


def escaped(text: str) -> str:
    """``text`` in a table's cell."""
    return text.replace("|", "\\|").replace("<", "&lt;")
