# SPDX-License-Identifier: Apache-2.0
"""KV groups and memory of one request: vLLM's grouping, ours, and the figures to reach.

    python -m benchmarks.kv_layout [--json | --costs]

The run computes everything except the figures to reach: vLLM's by its own functions (in a
process of the emulated NPU), ours with every objective, with a proven bound of memory and the
processor time that planning took. ``shared`` is the same in pages that groups share
(``layout.shared_pages``), where the memory of a request is that in the long run. The pairs of
``published_pairs`` come after those of the table, without vLLM's part.

vllm-ascend 0.30.0rc2 gives every layer a buffer of its own, so it is compared by requests at once
from the same memory, in the environment that ``make setup HOST=0.30`` makes. Hybrid models have the
block and page sizes of that release there, and layers that take strides. The last lines name rows
where it serves more than we do, or we not G times as many where it has G equal groups.
"""

from __future__ import annotations

import argparse
import itertools
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
from mkv_ascend.layout.grouping import Grouping, GroupingOptions, group_layers
from mkv_ascend.layout.objective import Cost, Objective
from mkv_ascend.layout.page_planning import plan_pages
from mkv_ascend.layout.requirements import LayerRequirements
from mkv_ascend.layout.retention import Request

MIB = 2**20
STABLE, CANDIDATE = "0.23.0", "0.30.0rc2"
"""vllm-ascend whose layers share buffers, and with a buffer for each layer."""
NEAR_IDEAL = 1.05
"""Memory by the ideal up to which a row is near it."""


def plan(row: Row, objective: Objective, takes_strides: bool = False) -> tuple[Cost, float]:
    """Cost of our grouping of ``row``, and the milliseconds that planning took."""
    needs = load_pair(row.target, row.draft).needs(takes_strides)
    grouping, milliseconds = _group(needs, REQUEST, objective)
    return grouping.cost, milliseconds


def _group(
    needs: Sequence[LayerRequirements], request: Request, objective: Objective
) -> tuple[Grouping, float]:
    """The grouping, and the milliseconds of processor time that it took."""
    start = time.process_time()
    grouping = group_layers(needs, request, GroupingOptions(objective=objective))
    return grouping, (time.process_time() - start) * 1000


def figures(
    row: Row, stock: dict[str, Any], candidate: dict[str, Any] | None = None
) -> dict[str, Any]:
    """One row of the result; ``stock`` is vLLM's part of it, ``candidate`` that of 0.30.0rc2."""
    planned = _planned(load_pair(row.target, row.draft).needs(), REQUEST)
    return {
        "name": row.name,
        "table": {"groups": row.goal.groups, "mib": row.goal.mib},
        "vllm": stock,
        "candidate": candidate,
        "beside_candidate": _beside_candidate(row) if candidate else None,
        **planned,
    }


def _beside_candidate(row: Row) -> dict[str, Any]:
    """What we plan on the candidate: by default, with the least memory, and without strides.

    ``mib``: that one request holds; ``contiguous_mib``: the same if its layers, where they have
    pages of one size, took contiguous components alone.
    """
    pair = load_pair_of_pages(row.target, row.draft)
    needs = pair.needs_of_pages()
    chosen = _group(needs, REQUEST, Objective.BALANCED)[0].cost
    least = _group(needs, REQUEST, Objective.LEAST_MEMORY)[0].cost
    contiguous = _group(pair.needs(), REQUEST, Objective.BALANCED)[0].cost
    return {
        "groups": chosen.groups,
        "mib": whole_mib(chosen.held_bytes),
        "requests": MEMORY_GIB * 2**30 / chosen.held_bytes,
        "least_groups": least.groups,
        "least_requests": MEMORY_GIB * 2**30 / least.held_bytes,
        "contiguous_mib": whole_mib(contiguous.held_bytes),
    }


def below(row: dict[str, Any], field: str = "requests") -> bool:
    """Whether we serve fewer requests at once than the candidate, or than G times with G groups.

    ``field``: of ``beside_candidate``; ``least_requests`` for the objective ``least_memory``.
    """
    candidate = row["candidate"]
    if candidate is None or candidate["error"]:
        return False
    due = (candidate["equal_groups"] or 1) * candidate["requests"]
    return bool(row["beside_candidate"][field] < due)


def published_figures(pair: PublishedPair) -> dict[str, Any]:
    """One row of the result for a pair of published models: no figure to reach, no vLLM."""
    needs = pair_needs(pair.target, pair.draft, pair.request, pair.ranks)
    planned = _planned(needs, pair.request)
    without = dict.fromkeys(("table", "vllm", "candidate", "beside_candidate"))
    return {"name": pair.name, **without, **planned}


def _planned(needs: Sequence[LayerRequirements], request: Request) -> dict[str, Any]:
    """``over_ideal``: memory by that without padding, and the rest, of what is chosen by default.

    ``bound_mib``: no grouping with as few groups, and as fine prefix hits, holds less.
    ``same_hits``: the least memory with as fine prefix hits, however many groups it takes.
    ``cost_mib``: what memory the price of groups costs; what the fine hits cost on top of the least
    memory; and what no grouping saves. All that is above the ideal.
    ``coarser``: what the program proposes where coarser prefix hits are worth something.
    """
    planned = {objective: _group(needs, request, objective) for objective in Objective}
    chosen, milliseconds = planned[Objective.BALANCED]
    same_hits, least = chosen.alternatives[-1], planned[Objective.LEAST_MEMORY][0].cost
    held = (chosen.cost.held_bytes, same_hits.held_bytes, least.held_bytes, least.needed_bytes)
    costs = [round((more - less) / MIB, 1) for more, less in itertools.pairwise(held)]
    coarser = chosen.coarser
    return {
        "layers": len(needs),
        "ideal_mib": whole_mib(chosen.cost.needed_bytes),
        "over_ideal": round(chosen.cost.held_bytes / chosen.cost.needed_bytes, 4),
        "bound_mib": round(chosen.bound_bytes / MIB, 2),
        "gap": round(chosen.gap, 6),
        "exhaustive": chosen.exhaustive,
        "nodes": chosen.nodes,
        "plan_ms": round(milliseconds, 2),
        "same_hits": _memory(same_hits),
        "cost_mib": dict(zip(("groups", "hits", "layout"), costs, strict=True)),
        "coarser": coarser and {"max_block_size": coarser.max_block_size, **_memory(coarser.cost)},
        "shared": _shared(needs, request),
        **{str(objective): _part(*found) for objective, found in planned.items()},
    }


def _shared(needs: Sequence[LayerRequirements], request: Request) -> dict[str, Any]:
    start = time.process_time()
    found = plan_pages(needs, request)
    milliseconds = (time.process_time() - start) * 1000
    return {
        "over_ideal": round(found.held_bytes / sum(x.needed_bytes(request) for x in needs), 4),
        "groups": len(found.groups),
        "page_mib": round(found.page_bytes / MIB, 1),
        "milliseconds": round(milliseconds, 1),
    }


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Memory by the ideal and groups of all rows, by default and in pages that groups share."""
    found = {}
    for name in (str(Objective.BALANCED), "shared"):
        over = [row[name]["over_ideal"] for row in rows]
        groups = [row[name]["groups"] for row in rows]
        found[name] = {
            "near_ideal": sum(number <= NEAR_IDEAL for number in over),
            "worst": max(over),
            "median": round(statistics.median(over), 4),
            "groups": sum(groups),
            "most_groups": max(groups),
        }
    found["shared"]["most_milliseconds"] = max(row["shared"]["milliseconds"] for row in rows)
    return found


def _memory(cost: Cost) -> dict[str, Any]:
    return {
        "groups": cost.groups,
        "mib": whole_mib(cost.held_bytes),
        "over_ideal": round(cost.held_bytes / cost.needed_bytes, 4),
    }


def _part(grouping: Grouping, milliseconds: float) -> dict[str, Any]:
    return {
        **_memory(grouping.cost),
        "prefix_hit_tokens": grouping.prefix_hit_tokens,
        "bound_mib": round(grouping.bound_bytes / MIB, 2),
        "gap": round(grouping.gap, 6),
        "exhaustive": grouping.exhaustive,
        "plan_ms": round(milliseconds, 2),
    }


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
    """The result for a terminal: groups, MiB, prefix hits, and milliseconds of planning.

    ``shared``: groups, and memory by the ideal. The summary is in the last lines.
    """
    width = max(len(row["name"]) for row in result["rows"]) + 2
    lines = [
        "KV groups and MiB that one request holds (bfloat16); of the default its memory by the",
        "ideal, tokens that prefix hits are multiples of, and how far it may be from the least.",
        f"Without a length: {REQUEST.tokens} tokens on one rank.",
        "",
        f"{'target + draft':<{width}}{'ideal':>7}{'to reach':>11}{'vLLM 0.23.0':>13}"
        f"{'balanced':>12}{'':>7}{'hits':>6}{'gap':>7}"
        f"{'fewest groups':>15}{'least memory':>14}{'hits':>6}{'plan ms':>9}{'shared':>10}",
    ]
    lines += [_line(row, width) for row in result["rows"]]
    vllm = [row["vllm"] for row in result["rows"] if row["vllm"]]
    errors = sorted({part["error"] for part in vllm if part["error"]})
    lines += ["", *(f"vLLM raises {error}" for error in errors)]
    for name, numbers in summary(result["rows"]).items():
        lines.append(f"{name}: {', '.join(f'{key} {value}' for key, value in numbers.items())}")
    return "\n".join(lines)


def _line(row: dict[str, Any], width: int) -> str:
    stock, table = row["vllm"], row["table"]
    chosen, least = row["balanced"], row["least_memory"]
    shown = "-" if stock is None else "raises" if stock["error"] else _pair(stock)
    gap = f"{chosen['gap']:.1%}" if chosen["gap"] else "proven"
    return (
        f"{row['name']:<{width}}{row['ideal_mib']:>7}{_pair(table) if table else '-':>11}"
        f"{shown:>13}{_pair(chosen):>12}{chosen['over_ideal']:>7.2f}"
        f"{chosen['prefix_hit_tokens']:>6}{gap:>7}{_pair(row['fewest_groups']):>15}"
        f"{_pair(least):>14}{least['prefix_hit_tokens']:>6}"
        f"{max(row[str(objective)]['plan_ms'] for objective in Objective):>9.1f}"
        f"{row['shared']['groups']:>4}, {row['shared']['over_ideal']:.2f}"
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
        "do not share memory: we must serve as many times its requests. MiB of a request; "
        "contiguous: without strides.",
        "",
        f"{'target + draft':<{width}}{stock_name:>17}{'equal':>7}{'here':>12}{'times':>8}"
        f"{'least memory':>15}{'MiB':>7}{'contiguous':>12}",
    ]
    for row in rows:
        stock, ours = row["candidate"], row["beside_candidate"]
        shown, times = "raises", "-"
        if not stock["error"]:
            shown = f"{stock['groups']}, {stock['requests']:.1f}"
            times = f"{ours['requests'] / stock['requests']:.3f}"
        here = f"{ours['groups']}, {ours['requests']:.1f}"
        least = f"{ours['least_groups']}, {ours['least_requests']:.1f}"
        equal = stock.get("equal_groups") or "-"
        lines.append(
            f"{row['name']:<{width}}{shown:>17}{equal:>7}{here:>12}{times:>8}"
            f"{least:>15}{ours['mib']:>7}{ours['contiguous_mib']:>12}"
        )
    lines.append("")
    for title, field in (("by default", "requests"), ("with least_memory", "least_requests")):
        fewer = [row["name"] for row in rows if below(row, field)]
        lines.append(f"Fewer than they must be, {title}: {', '.join(fewer) or 'none'}")
    return "\n".join(lines)


def as_costs(result: dict[str, Any]) -> str:
    """Rows that are not near the ideal, in Markdown: what each constraint costs."""
    lines = [
        "| pair | ideal | chosen | hits | the same hits, any groups | any hits, any groups "
        "| price of groups | fine hits | no grouping saves | with `max_block_size` |",
        "|" + " --- |" * 10,
    ]
    for row in result["rows"]:
        if row["over_ideal"] > NEAR_IDEAL:
            cost, coarser = row["cost_mib"], row["coarser"]
            parts = [row["balanced"], row["same_hits"], row["least_memory"]]
            chosen, same, least = (f"{_pair(part)}, {part['over_ideal']:.3f}" for part in parts)
            larger = f"{coarser['max_block_size']}: {_pair(coarser)}" if coarser else "-"
            lines.append(
                f"| {row['name']} | {row['ideal_mib']} | {chosen} | "
                f"{row['balanced']['prefix_hit_tokens']} | {same} | {least} | "
                f"{cost['groups']:.0f} | {cost['hits']:.0f} | {cost['layout']:.0f} | {larger} |"
            )
    return "\n".join(lines)


def _pair(part: dict[str, Any]) -> str:
    return f"{part['groups']}, {part['mib']}"


def main() -> None:
    """Print the result as a table, as JSON, or what its constraints cost."""
    parser = argparse.ArgumentParser(prog="benchmarks.kv_layout", description=__doc__)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print JSON")
    form.add_argument(
        "--costs", action="store_true", help="print what is over the ideal, and by which constraint"
    )
    arguments = parser.parse_args()
    result = run()
    if arguments.json:
        print(json.dumps(result, indent=2))
    elif arguments.costs:
        print(as_costs(result))
    else:
        print(f"{as_table(result)}\n\n{as_requests(result)}")


if __name__ == "__main__":
    main()
