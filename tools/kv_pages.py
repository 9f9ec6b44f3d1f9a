# SPDX-License-Identifier: Apache-2.0
"""The table of docs/kv_groups.md: pairs for which larger blocks save memory.

``benchmarks/kv_costs.json`` has all pairs that are over the ideal, as
``python -m benchmarks.kv_layout --costs`` told them, and the exceptions of ``benchmarks.kv_grid``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matrix_pages

COSTS = Path(__file__).resolve().parent.parent / "benchmarks" / "kv_costs.json"
HEAD = ("pair", "ideal", "default: hits", "groups", "MiB", "`max_block_size`", "groups", "MiB")


def read() -> dict[str, list[dict[str, Any]]]:
    """Pairs over the ideal, and exceptions to the rules on groups."""
    found: dict[str, list[dict[str, Any]]] = json.loads(COSTS.read_text(encoding="utf-8"))
    return found


def table() -> str:
    """A row for each pair that coarser hits save memory for."""
    lines = [matrix_pages.row(HEAD), matrix_pages.row(["---"] * len(HEAD))]
    for pair in read()["pairs"]:
        if "max_block_size" not in pair:
            continue
        chosen, larger = pair["chosen"], pair["max_block_size"]
        numbers = [pair["ideal_mib"], pair["hits"], chosen["groups"], chosen["mib"]]
        numbers += [larger["tokens"], larger["groups"], larger["mib"]]
        lines.append(matrix_pages.row((pair["pair"], *map(str, numbers))))
    return "\n".join(lines) + "\n"
