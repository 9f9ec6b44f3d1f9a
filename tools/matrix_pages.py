# SPDX-License-Identifier: Apache-2.0
"""Tables of the matrix (``docs/matrix.json``, written by ``make matrix``) for the documentation."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

PATH = Path(__file__).resolve().parents[1] / "docs" / "matrix.json"

WORKS = "works"

NOT_RUN = "not run"

NO_METHOD = "no method"
"""Of a method that the first host's vLLM does not know."""

HOSTS = (
    "Below a version of vllm-ascend stand the results of this plugin: eagerly, in graphs, and with "
    "prefix hits in graphs."
)

NOT_COUNTED = (
    "Cannot align ssm_page_size and attn_page_size",  # other sizes of states and heads may align
    "only in float32 can tokens be compared",
)
"""What stock says of these tiny models, or of their dtype, and need not say of published ones."""
OTHER_DRAFTS = "draft tokens are not the draft's own"
OTHER_TOKENS = "requests got other tokens"
YES, NO, UNTRIED = "yes", "no", "not counted"

MESSAGE = re.compile(r" \((?:[A-Z]\w*Error|Value error|Assertion failed)\b.*\)$", re.DOTALL)
"""What an engine said, behind the reason of a refusal that is known; matrix.json has it."""

EMPTY = ""
"""The cell of a family without a head of this method."""


def read(path: Path = PATH) -> dict[str, Any]:
    """The matrix as it was measured last."""
    matrix: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return matrix


def tables(matrix: Mapping[str, Any]) -> str:
    """The grid, and each pair in full, which docs/javascripts/matrix.js filters."""
    return f"## Results\n\n{grid(matrix)}\n\n## Each pair\n\n{HOSTS}\n\n{details(matrix)}"


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
    """Ours and stock's outcome, such as ``works (fails)``.

    Of a method that only another host knows, ours there and that host.
    """
    outcome, beside = cell["ours"], stock_word(cell)
    if outcome is None:
        beside, there = next(iter(cell["hosts"].items()))
        outcome = there["ours"]
    ours = f"**{outcome}**" if outcome == WORKS else outcome
    return f"{ours} ({beside})"


def stock_word(cell: Mapping[str, Any]) -> str:
    """Stock's outcome in one word or two."""
    runs, tokens, drafts = stock_columns(cell)
    if runs == UNTRIED:
        return UNTRIED
    if runs == NO:
        return str(cell["stock"])
    return "works" if drafts == YES else "tokens right" if tokens == YES else "other tokens"


def stock_columns(cell: Mapping[str, Any]) -> tuple[str, str, str]:
    """Whether stock runs, its output tokens are right, and its drafts are the draft's own.

    Where drafts are not, the accepted tokens per proposal stand beside the reference's.
    """
    reason = cell.get("stock_reason") or ""
    if cell["stock"] is None:
        return NO_METHOD, EMPTY, EMPTY
    if cell["stock"] == WORKS:
        return YES, YES, YES
    if any(words in reason for words in NOT_COUNTED):
        return UNTRIED, EMPTY, EMPTY
    if OTHER_TOKENS in reason:
        return YES, NO, EMPTY
    if OTHER_DRAFTS in reason:
        accepted = f"{cell['stock_acceptance']:.2f} ({cell['reference_acceptance']:.2f})"
        return YES, YES, f"{NO}: {accepted}"
    return NO, EMPTY, EMPTY


def stock_counts(matrix: Mapping[str, Any]) -> tuple[int, int, int]:
    """Pairs in which stock is counted, has the right tokens, and also drafts that are exact."""
    found = [stock_columns(cell) for cell in matrix["cells"]]
    counted = [columns for columns in found if columns[0] in (YES, NO)]
    right = [columns for columns in counted if columns[1] == YES]
    return len(counted), len(right), sum(columns[2] == YES for columns in right)


def details(matrix: Mapping[str, Any]) -> str:
    """One line for each cell, with acceptance and reasons."""
    others = other_hosts(matrix)
    head = ["target", "draft", "method", matrix["versions"]["vllm-ascend"], *others]
    head += ["accepted (reference)"]
    head += ["stock runs", "stock's tokens right", "stock's drafts exact", "reason"]
    lines = [row(head), row(["---"] * len(head))]
    for cell in matrix["cells"]:
        accepted = EMPTY
        if cell["acceptance"] is not None:
            accepted = both_accepted(cell)
        if cell["ours"] is None:
            accepted = accepted_there(cell)
        columns = [cell["target"], cell["draft"], cell["method"]]
        columns.append(NO_METHOD if cell["ours"] is None else in_three_ways(cell))
        columns += [on_host(cell, host) for host in others]
        columns += [accepted, *stock_columns(cell)]
        lines.append(row([*columns, escaped("; ".join(reasons(cell)))]))
    return "\n".join(lines)


def accepted_there(cell: Mapping[str, Any]) -> str:
    """What another host accepted, of a method that the first does not know."""
    there = next(iter(cell["hosts"].values()))
    return EMPTY if there.get("acceptance") is None else both_accepted(there)


def both_accepted(cell: Mapping[str, Any]) -> str:
    """Accepted tokens per proposal, and the reference's in brackets."""
    return f"{cell['acceptance']:.2f} ({cell['reference_acceptance']:.2f})"


def other_hosts(matrix: Mapping[str, Any]) -> list[str]:
    """Versions of vllm-ascend that some cells were run on beside the first."""
    return sorted({host for cell in matrix["cells"] for host in cell.get("hosts") or {}})


def on_host(cell: Mapping[str, Any], host: str) -> str:
    """What came of a cell on another host: here eagerly, in graphs, and with prefix hits."""
    found = (cell.get("hosts") or {}).get(host)
    return in_three_ways(found) if found else NOT_RUN


def in_three_ways(found: Mapping[str, Any]) -> str:
    """What came of a cell eagerly, in graphs, and with prefix hits there."""
    return ", ".join(found.get(way) or NOT_RUN for way in ("ours", "graph", "hits"))


def reasons(cell: Mapping[str, Any]) -> list[str]:
    """Why a cell does not work; what was said before is not said again."""
    found = reasons_on_host(cell, "")
    found["stock: "] = cell.get("stock_reason")
    for host, there in (cell.get("hosts") or {}).items():
        found |= reasons_on_host(there, host)
    first: dict[str, str] = {}
    for title, told in found.items():
        if told:
            reason = MESSAGE.sub("", told)
            first.setdefault(reason, f"{title}{reason}")
    return list(first.values())


def reasons_on_host(found: Mapping[str, Any], host: str) -> dict[str, str | None]:
    """Where on ``host``, empty for the first -> why a cell does not work there."""
    sides = {"": "reason", "in graphs": "graph_reason", "with hits": "hits_reason"}
    titles = {" ".join(word for word in (host, side) if word): sides[side] for side in sides}
    return {f"{title}: " if title else "": found.get(field) for title, field in titles.items()}


def row(columns: Sequence[str]) -> str:
    """One line of a table."""
    return f"| {' | '.join(columns)} |"


def escaped(text: str) -> str:
    """``text`` in a table's cell."""
    return text.replace("|", "\\|").replace("<", "&lt;")
