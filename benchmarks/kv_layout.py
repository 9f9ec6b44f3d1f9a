# SPDX-License-Identifier: Apache-2.0
"""KV groups and memory of one request: vLLM's grouping, ours, and the figures to reach.

    python -m benchmarks.kv_layout [--json]

Everything but the figures to reach is computed in the run: vLLM's by its own functions (in a
process of the emulated NPU), ours with both objectives, with the time that planning took.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from benchmarks.models import load_pair
from benchmarks.rows import REQUEST, ROWS, Row, whole_mib
from benchmarks.stock_groups import run_stock
from mkv_ascend.layout.grouping import Cost, GroupingOptions, Objective, group_layers


def plan(row: Row, objective: Objective, takes_strides: bool = False) -> tuple[Cost, float]:
    """Cost of our grouping of ``row``, and the milliseconds that planning took."""
    needs = load_pair(row.target, row.draft).needs(takes_strides)
    start = time.perf_counter()
    grouping = group_layers(needs, REQUEST, GroupingOptions(objective=objective))
    return grouping.cost, (time.perf_counter() - start) * 1000


def figures(row: Row, stock: dict[str, Any]) -> dict[str, Any]:
    """One row of the result; ``stock`` is vLLM's part of it."""
    return {
        "name": row.name,
        "ideal_mib": _ideal_mib(row),
        "table": {"groups": row.goal.groups, "mib": row.goal.mib},
        "vllm": stock,
        "fewest_groups": _planned(row, Objective.FEWEST_GROUPS),
        "least_memory": _planned(row, Objective.LEAST_MEMORY),
    }


def _ideal_mib(row: Row) -> int:
    needs = load_pair(row.target, row.draft).needs()
    return whole_mib(sum(need.needed_bytes(REQUEST) for need in needs))


def _planned(row: Row, objective: Objective) -> dict[str, Any]:
    cost, milliseconds = plan(row, objective)
    return {
        "groups": cost.groups,
        "mib": whole_mib(cost.held_bytes),
        "plan_ms": round(milliseconds, 2),
    }


def run() -> dict[str, Any]:
    """``{"rows": [...]}``, in the order of the table."""
    stock = run_stock()
    return {"rows": [figures(row, stock[row.name]) for row in ROWS]}


def as_table(result: dict[str, Any]) -> str:
    """The result for a terminal: groups, MiB, and milliseconds of planning."""
    lines = [
        f"KV groups and MiB that one request of {REQUEST.tokens} tokens holds (bfloat16, one rank)",
        "",
        f"{'target + draft':<26}{'ideal':>7}{'to reach':>11}{'vLLM 0.23.0':>13}"
        f"{'fewest groups':>16}{'least memory':>16}{'plan ms':>9}",
    ]
    for row in result["rows"]:
        fewest, least = row["fewest_groups"], row["least_memory"]
        slowest = max(fewest["plan_ms"], least["plan_ms"])
        stock = "raises" if row["vllm"]["error"] else _pair(row["vllm"])
        lines.append(
            f"{row['name']:<26}{row['ideal_mib']:>7}{_pair(row['table']):>11}{stock:>13}"
            f"{_pair(fewest):>16}{_pair(least):>16}{slowest:>9.1f}"
        )
    errors = sorted({row["vllm"]["error"] for row in result["rows"] if row["vllm"]["error"]})
    return "\n".join([*lines, "", *(f"vLLM raises {error}" for error in errors)])


def _pair(part: dict[str, Any]) -> str:
    return f"{part['groups']}, {part['mib']}"


def main() -> None:
    """Print the result as a table, or with ``--json`` as JSON."""
    parser = argparse.ArgumentParser(prog="benchmarks.kv_layout", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    result = run()
    print(json.dumps(result, indent=2) if arguments.json else as_table(result))


if __name__ == "__main__":
    main()
