# SPDX-License-Identifier: Apache-2.0
"""Groups and memory of every pair of thirteen published models, over ranks and lengths.

    python -m benchmarks.kv_grid [--json] [--output FILE] [--processes N]

What is chosen when nothing is asked for is held to three rules, and each exception is listed:
no more than 16 groups where 8 % more memory than the least buys fewer, never more than 32, and
never more memory than 8 % over the least. ``--output`` keeps a line of JSON for each plan; a run
that finds the file goes on where that one stopped.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from collections.abc import Iterable
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.published import NotServedError, pair_needs
from mkv_ascend.layout.grouping import group_layers
from mkv_ascend.layout.objective import MOST_EXTRA_MEMORY, MOST_GROUPS, USUAL_MOST_GROUPS
from mkv_ascend.layout.retention import Request

MODELS = (
    "Command-R7B",
    "DeepSeek-V3",
    "DeepSeek-V3.2",
    "GPT-OSS-20b",
    "Gemma-2-27B",
    "Gemma-3-1b",
    "Gemma-3-27b",
    "Granite-4.0-H-Tiny",
    "LFM2-1.2B",
    "Llama-3.1-8B",
    "MiMo-V2-Flash",
    "Qwen3-0.6B",
    "Qwen3-Next-80B-A3B",
)
RANKS = (1, 2, 4, 8)
TOKENS = (1_024, 4_096, 8_192, 32_768, 131_072)

Case = tuple[str, str, int, int]


def plan(case: Case) -> dict[str, Any]:
    """What is chosen for one case, beside the least memory; ``refused`` where ranks do not fit."""
    target, draft, ranks, tokens = case
    request = Request(tokens, tokens_per_step=4)
    result: dict[str, Any] = {"target": target, "draft": draft, "ranks": ranks, "tokens": tokens}
    try:
        needs = pair_needs(target, draft, request, ranks)
    except NotServedError as error:
        return {**result, "refused": str(error)}
    start = time.process_time()
    grouping = group_layers(needs, request)
    milliseconds = (time.process_time() - start) * 1000
    least = grouping.alternatives[-1]
    near = (1 + MOST_EXTRA_MEMORY) * least.held_bytes
    fewest = next(cost for cost in grouping.alternatives if cost.held_bytes <= near)
    return {
        **result,
        "groups": grouping.cost.groups,
        "mib": round(grouping.cost.held_bytes / 2**20, 2),
        "least_groups": least.groups,
        "least_mib": round(least.held_bytes / 2**20, 2),
        "fewest_groups_within_8_percent": fewest.groups,
        "over_least": round(grouping.cost.held_bytes / least.held_bytes - 1, 4),
        "exhaustive": grouping.exhaustive,
        "gap": grouping.gap,
        "nodes": grouping.nodes,
        "plan_ms": round(milliseconds, 1),
    }


def broken_rules(row: dict[str, Any]) -> list[str]:
    """The rules that a plan does not keep to."""
    if "refused" in row:
        return []
    fewer = row["fewest_groups_within_8_percent"] < row["groups"]
    found = {
        f"more than {USUAL_MOST_GROUPS} groups where 8 % buys fewer": (
            row["groups"] > USUAL_MOST_GROUPS and fewer
        ),
        f"more than {MOST_GROUPS} groups": row["groups"] > MOST_GROUPS,
        "more than 8 % over the least memory": row["over_least"] > MOST_EXTRA_MEMORY,
    }
    return [rule for rule, is_broken in found.items() if is_broken]


def run(cases: Iterable[Case], output: Path | None, processes: int) -> list[dict[str, Any]]:
    """A row for each case, in their order; those that ``output`` has are not computed again."""
    done: dict[Case, dict[str, Any]] = {}
    if output is not None and output.exists():
        for line in output.read_text().splitlines():
            row = json.loads(line)
            done[(row["target"], row["draft"], row["ranks"], row["tokens"])] = row
    wanted = list(cases)
    missing = [case for case in wanted if case not in done]
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        for case, row in zip(missing, pool.imap(plan, missing, chunksize=16), strict=True):
            done[case] = row
            if output is not None:
                with output.open("a") as file:
                    file.write(json.dumps(row) + "\n")
    return [done[case] for case in wanted]


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Counts over all rows, and the exceptions with their figures."""
    plans = [row for row in rows if "refused" not in row]
    broken = [(row, broken_rules(row)) for row in plans]
    return {
        "plans": len(plans),
        "refused": len(rows) - len(plans),
        "more_than_16_groups": sum(row["groups"] > USUAL_MOST_GROUPS for row in plans),
        "most_groups": max(row["groups"] for row in plans),
        "most_over_least": max(row["over_least"] for row in plans),
        "not_exhaustive": sum(not row["exhaustive"] for row in plans),
        "largest_gap": max(row["gap"] for row in plans),
        "most_nodes": max(row["nodes"] for row in plans),
        "slowest_ms": max(row["plan_ms"] for row in plans),
        "exceptions": [{"rules": rules, **row} for row, rules in broken if rules],
    }


def main() -> None:
    """Print the summary, with ``--json`` every plan too."""
    parser = argparse.ArgumentParser(prog="benchmarks.kv_grid", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print every plan as JSON")
    parser.add_argument("--output", type=Path, help="file of JSON lines to keep and go on from")
    parser.add_argument("--processes", type=int, default=1, choices=range(1, 9), metavar="1..8")
    arguments = parser.parse_args()
    rows = run(product(MODELS, MODELS, RANKS, TOKENS), arguments.output, arguments.processes)
    found = summary(rows)
    print(json.dumps({**found, "rows": rows} if arguments.json else found, indent=2))


if __name__ == "__main__":
    main()
