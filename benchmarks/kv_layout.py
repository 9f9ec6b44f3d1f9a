# SPDX-License-Identifier: Apache-2.0
"""KV groups and memory of one request: vLLM's grouping, ours, and the figures to reach.

    python -m benchmarks.kv_layout [--json]

The run computes everything except the figures to reach: vLLM's by its own functions (in a
process of the emulated NPU), and ours with the processor time that planning took. The memory of a
request is that in the long run, as requests share pages. ``one_block`` is the same with a block of
every group in a page, as KV connectors need it. The pairs of ``published_pairs`` come after those
of the table, without vLLM's part.

vllm-ascend 0.30.0rc2 gives every layer a buffer of its own, so it is compared by requests at once
from the same memory, in the environment that ``make setup HOST=0.30`` makes. Hybrid models have the
block and page sizes of that release there, and layers that take strides. The last line names rows
where it serves more than we do, or we not G times as many where it has G equal groups.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.host import interpreter_with
from benchmarks.models import load_pair, load_pair_of_pages
from benchmarks.published import pair_needs
from benchmarks.published_pairs import PAIRS, PublishedPair
from benchmarks.rows import MEMORY_GIB, REQUEST, ROWS, Row, whole_mib
from benchmarks.stock_groups import run_stock
from mkv_ascend.layout.page_planning import plan_pages
from mkv_ascend.layout.requirements import LayerRequirements, Request

MIB = 2**20
STABLE, CANDIDATE = "0.23.0", "0.30.0rc2"
"""vllm-ascend whose layers share buffers, and with a buffer for each layer."""
NEAR_IDEAL = 1.05
"""Memory by the ideal up to which a row is near it."""
WAYS = ("shared", "one_block", "strided")
"""Pages of several blocks, of one, and in rows as on the candidate."""


def figures(
    row: Row, stock: dict[str, Any], candidate: dict[str, Any] | None = None
) -> dict[str, Any]:
    """One row of the result; ``stock`` is vLLM's part of it, ``candidate`` that of 0.30.0rc2."""
    strided = load_pair_of_pages(row.target, row.draft).needs_of_pages()
    return {
        "name": row.name,
        "table": {"groups": row.goal.groups, "mib": row.goal.mib},
        "vllm": stock,
        "candidate": candidate,
        **_planned(load_pair(row.target, row.draft).needs(), REQUEST),
        "strided": planned(strided, REQUEST) if strided[0].is_packed else None,
    }


def published_figures(pair: PublishedPair) -> dict[str, Any]:
    """One row of the result for a pair of published models: no figure to reach, no vLLM."""
    needs = pair_needs(pair.target, pair.draft, pair.request, pair.ranks)
    without = dict.fromkeys(("table", "vllm", "candidate", "strided"))
    return {"name": pair.name, **without, **_planned(needs, pair.request)}


def _planned(needs: Sequence[LayerRequirements], request: Request) -> dict[str, Any]:
    ideal = sum(need.needed_bytes(request) for need in needs)
    return {
        "layers": len(needs),
        "ideal_mib": whole_mib(ideal),
        "shared": planned(needs, request),
        "one_block": planned(needs, request, one_block=True),
    }


def planned(
    needs: Sequence[LayerRequirements], request: Request, *, one_block: bool = False
) -> dict[str, Any]:
    """Groups, memory and planning time of one plan; ``over_ideal``: memory without padding is 1."""
    start = time.process_time()
    found = plan_pages(needs, request, one_block=one_block)
    milliseconds = (time.process_time() - start) * 1000
    return {
        "groups": len(found.groups),
        "mib": whole_mib(int(found.held_bytes)),
        "over_ideal": round(found.held_bytes / sum(x.needed_bytes(request) for x in needs), 4),
        "requests": MEMORY_GIB * 2**30 / found.held_bytes,
        "prefix_hit_tokens": found.prefix_hit_tokens,
        "page_mib": round(found.page_bytes / MIB, 1),
        "milliseconds": round(milliseconds, 1),
    }


def ours_beside_candidate(row: dict[str, Any]) -> dict[str, Any]:
    """What we plan on the candidate."""
    found: dict[str, Any] = row["strided"] or row["shared"]
    return found


def below(row: dict[str, Any]) -> bool:
    """Whether we serve fewer requests at once than the candidate, or than G times with G groups."""
    candidate = row["candidate"]
    if candidate is None or candidate["error"]:
        return False
    due = (candidate["equal_groups"] or 1) * candidate["requests"]
    return bool(ours_beside_candidate(row)["requests"] < due)


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Memory by the ideal, groups and planning time of all rows, for each way of planning."""
    found = {}
    for way in WAYS:
        parts = [row[way] for row in rows if row[way] is not None]
        if not parts:
            continue
        over = [part["over_ideal"] for part in parts]
        found[way] = {
            "rows": len(parts),
            "near_ideal": sum(number <= NEAR_IDEAL for number in over),
            "worst": max(over),
            "median": round(statistics.median(over), 4),
            "groups": sum(part["groups"] for part in parts),
            "most_groups": max(part["groups"] for part in parts),
            "most_milliseconds": max(part["milliseconds"] for part in parts),
        }
    return found


def run() -> dict[str, Any]:
    """Rows in the order of the table, then the published pairs; and the summary."""
    stock, python = (
        run_stock(interpreter_with(STABLE) or sys.executable),
        interpreter_with(CANDIDATE),
    )
    candidate = {} if python is None else run_stock(python)
    rows = [figures(row, stock[row.name], candidate.get(row.name)) for row in ROWS]
    rows += [published_figures(pair) for pair in PAIRS]
    return {"rows": rows, "summary": summary(rows)}


def as_table(result: dict[str, Any]) -> str:
    """The result for a terminal: groups, MiB, memory by the ideal, and how long planning took.

    The summary is in the last lines.
    """
    width = max(len(row["name"]) for row in result["rows"]) + 2
    lines = [
        "KV groups and MiB that one request holds (bfloat16), and that memory by the ideal.",
        "hits: tokens that prefix hits are multiples of; page: MiB; one block: of each group in a",
        f"page, as KV connectors need it. Without a length: {REQUEST.tokens} tokens on one rank.",
        "",
        f"{'target + draft':<{width}}{'ideal':>7}{'to reach':>11}{'vLLM 0.23.0':>13}"
        f"{'here':>11}{'':>7}{'hits':>7}{'page':>7}{'ms':>5}{'one block':>12}{'':>7}",
    ]
    lines += [_line(row, width) for row in result["rows"]]
    vllm = [row["vllm"] for row in result["rows"] if row["vllm"]]
    errors = sorted({part["error"] for part in vllm if part["error"]})
    lines += ["", *(f"vLLM raises {error}" for error in errors)]
    for name, numbers in summary(result["rows"]).items():
        lines.append(f"{name}: {', '.join(f'{key} {value}' for key, value in numbers.items())}")
    return "\n".join(lines)


def _line(row: dict[str, Any], width: int) -> str:
    stock, table, ours, one_block = row["vllm"], row["table"], row["shared"], row["one_block"]
    shown = "-" if stock is None else "raises" if stock["error"] else _pair(stock)
    return (
        f"{row['name']:<{width}}{row['ideal_mib']:>7}{_pair(table) if table else '-':>11}"
        f"{shown:>13}{_pair(ours):>11}{ours['over_ideal']:>7.3f}{ours['prefix_hit_tokens']:>7}"
        f"{ours['page_mib']:>7.1f}{ours['milliseconds']:>5.0f}"
        f"{_pair(one_block):>12}{one_block['over_ideal']:>7.3f}"
    )


def as_requests(result: dict[str, Any]) -> str:
    """Requests at once beside those of vllm-ascend 0.30.0rc2, and the rows where we serve fewer."""
    rows = [row for row in result["rows"] if row["candidate"]]
    if not rows:
        return f"Without stock {CANDIDATE}: `make setup HOST=0.30` makes its environment."
    width, stock_name = max(len(row["name"]) for row in rows) + 2, f"stock {CANDIDATE}"
    lines = [
        f"Requests of {REQUEST.tokens} tokens at once in {MEMORY_GIB} GiB for KV caches; of stock "
        "how many equal groups",
        "do not share memory: we must serve as many times its requests. MiB of a request.",
        "",
        f"{'target + draft':<{width}}{stock_name:>17}{'equal':>7}"
        f"{'here':>12}{'times':>8}{'MiB':>7}",
    ]
    for row in rows:
        stock, ours = row["candidate"], ours_beside_candidate(row)
        shown, times = "raises", "-"
        if not stock["error"]:
            shown = f"{stock['groups']}, {stock['requests']:.1f}"
            times = f"{ours['requests'] / stock['requests']:.3f}"
        here = f"{ours['groups']}, {ours['requests']:.1f}"
        equal = stock.get("equal_groups") or "-"
        lines.append(
            f"{row['name']:<{width}}{shown:>17}{equal:>7}{here:>12}{times:>8}{ours['mib']:>7}"
        )
    fewer = [row["name"] for row in rows if below(row)]
    return "\n".join([*lines, "", f"Fewer than they must be: {', '.join(fewer) or 'none'}"])


def _pair(part: dict[str, Any]) -> str:
    return f"{part['groups']}, {part['mib']}"


def main() -> None:
    """Print the result as a table, or as JSON."""
    parser = argparse.ArgumentParser(prog="benchmarks.kv_layout", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON")
    as_json = parser.parse_args().json
    result = run()
    if as_json:
        print(json.dumps(result, indent=2))
    else:
        print(f"{as_table(result)}\n\n{as_requests(result)}")


if __name__ == "__main__":
    main()
