# SPDX-License-Identifier: Apache-2.0
"""The matrix as JSON: ``docs/matrix.json``, from which ``tools/matrix_pages.py`` makes tables."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.matrix.cells import UNKNOWN_TO_FIRST_HOST, Cell, K
from benchmarks.matrix.running import (
    GRAPH,
    GRAPH_V2,
    HITS,
    HITS_V2,
    OURS,
    OURS_V2,
    STOCK,
    Verdict,
)

PATH = Path(__file__).resolve().parents[2] / "docs" / "matrix.json"

FIELDS = (
    "target", "draft", "method", "ours", "stock", "acceptance", "reference_acceptance", "reason",
    "stock_acceptance", "stock_reason", "graph", "graph_reason", "hits", "hits_reason",
    "target_model", "draft_model", "hosts",
)  # fmt: skip
"""Fields of a cell. ``hosts``: another vllm-ascend, or its runner V2 -> what came of it there."""

FIRST_HOST = "0.23.0"
"""The vllm-ascend that the fields of a cell are of."""

Verdicts = Mapping[tuple[str, str], Verdict]
"""(name of the cell, side) -> verdict."""


def is_first_host() -> bool:
    """Whether the vllm-ascend of this environment is the one that the fields of a cell are of."""
    return version("vllm-ascend") == FIRST_HOST


def unknown_to_first_host(cell: Cell) -> bool:
    """Whether the first host has no such method, so that its fields of the cell are None."""
    return cell.method in UNKNOWN_TO_FIRST_HOST


def as_json(
    cells: Sequence[Cell], verdicts: Verdicts, before: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The matrix.

    ``acceptance`` is accepted draft tokens per proposal of ``k`` tokens. ``graph`` is this plugin
    in ACL graphs, ``hits`` the same with prefix hits and asynchronous scheduling; None where that
    was not run. On another host than the first, what came of a cell
    goes into its ``hosts``, and nothing else changes.

    Args:
        cells: in the order of the rows. One that was not run eagerly on both sides is left out,
            except of methods that the first host does not know.
        before: a matrix whose rows stay as they are where there is no verdict, if they are of the
            same tiny models.
    """
    kept = {_place(row): row for row in (before or {}).get("cells", ())}
    rows = []
    for cell in cells:
        row = {
            "target": cell.target,
            "draft": cell.draft,
            "method": cell.method,
            "target_model": cell.target_model,
            "draft_model": cell.draft_model,
        }
        row = kept.get(_place(row), {"hosts": {}}) | row
        for host, sides in columns().items():
            of_sides = {role: verdicts.get((cell.name, side)) for role, side in sides.items()}
            found = _of_sides(of_sides)
            if host is None:
                row |= found
            elif found:
                hosts = row.get("hosts") or {}
                found = {name: found[name] for name in FIELDS if name in found}
                row["hosts"] = {**hosts, host: {**hosts.get(host, {}), **found}}
        if {"ours", "stock"} <= row.keys() or (unknown_to_first_host(cell) and row.get("hosts")):
            rows.append({name: row.get(name) for name in FIELDS})
    versions = {name: version(name) for name in ("vllm", "vllm-ascend")}
    if not is_first_host():
        versions = (before or {}).get("versions", {})
    return {"k": K, "versions": versions, "cells": rows}


def columns() -> dict[str | None, dict[str, str]]:
    """Name of a host in ``hosts``, None for the first -> field -> the side that says it."""
    sides = {OURS: OURS, GRAPH: GRAPH, HITS: HITS, STOCK: STOCK}
    if is_first_host():
        return {None: sides}
    here = version("vllm-ascend")
    return {here: sides, f"{here} V2": {OURS: OURS_V2, GRAPH: GRAPH_V2, HITS: HITS_V2}}


def _place(row: Mapping[str, Any]) -> tuple[Any, ...]:
    names = ("target", "draft", "method", "target_model", "draft_model")
    return tuple(row[name] for name in names)


def _of_sides(verdicts: Mapping[str, Verdict | None]) -> dict[str, Any]:
    """The fields that come of these verdicts, by side."""
    fields: dict[str, Any] = {}
    for side, verdict in verdicts.items():
        if verdict is None:
            continue
        prefix = "" if side == OURS else f"{side}_"
        fields[side] = verdict.outcome
        fields[f"{prefix}reason"] = without_folders(verdict.reason)
        fields[f"{prefix}acceptance"] = verdict.acceptance
        fields[f"{prefix}reference_acceptance"] = verdict.reference_acceptance
    return fields


def write(matrix: Mapping[str, Any], path: Path = PATH) -> None:
    """Write the JSON."""
    path.write_text(json.dumps(matrix, indent=2) + "\n", encoding="utf-8")


def without_folders(reason: str) -> str:
    """``reason`` with the tiny models by their names alone."""
    return re.sub(r"/\S*/(\w+)-[0-9a-f]{12}\b", r"\1", reason)
