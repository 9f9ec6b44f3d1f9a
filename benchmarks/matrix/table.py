# SPDX-License-Identifier: Apache-2.0
"""The matrix as JSON: ``docs/matrix.json``, from which ``tools/matrix_pages.py`` makes tables."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.matrix.cells import Cell, K
from benchmarks.matrix.running import GRAPH, OURS, STOCK, Verdict

PATH = Path(__file__).resolve().parents[2] / "docs" / "matrix.json"

Verdicts = Mapping[tuple[str, str], Verdict]
"""(name of the cell, side) -> verdict."""


def as_json(cells: Sequence[Cell], verdicts: Verdicts) -> dict[str, Any]:
    """The matrix; every cell must have a verdict on all sides.

    ``acceptance`` is accepted draft tokens per proposal of ``k`` tokens. ``graph`` is this plugin
    in ACL graphs.
    """
    rows = []
    for cell in cells:
        ours, graph, stock = (verdicts[cell.name, side] for side in (OURS, GRAPH, STOCK))
        rows.append(
            {
                "target": cell.target,
                "draft": cell.draft,
                "method": cell.method,
                "ours": ours.outcome,
                "stock": stock.outcome,
                "acceptance": ours.acceptance,
                "reference_acceptance": ours.reference_acceptance,
                "reason": without_folders(ours.reason),
                "stock_acceptance": stock.acceptance,
                "stock_reason": without_folders(stock.reason),
                "graph": graph.outcome,
                "graph_reason": without_folders(graph.reason),
                "target_model": cell.target_model,
                "draft_model": cell.draft_model,
            }
        )
    versions = {name: version(name) for name in ("vllm", "vllm-ascend")}
    return {"k": K, "versions": versions, "cells": rows}


def write(matrix: Mapping[str, Any], path: Path = PATH) -> None:
    """Write the JSON."""
    path.write_text(json.dumps(matrix, indent=2) + "\n", encoding="utf-8")


def without_folders(reason: str) -> str:
    """``reason`` with the tiny models by their names alone."""
    return re.sub(r"/\S*/(\w+)-[0-9a-f]{12}\b", r"\1", reason)
