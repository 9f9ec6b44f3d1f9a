# SPDX-License-Identifier: Apache-2.0
"""The cost of a proposal replayed from an ACL graph, beside the same engine run eagerly.

    python -m benchmarks.graphs [--json] [--k 1 4] [--b 1 3 8] [--repeats 5] [--host 0.30]

K draft tokens, batches of B requests, graphs for 1, 4 and 8 requests: a batch of another size is
padded. Launches are counts of the emulated NPU, the same on every run: replays of graphs, updates
of captured launches of attention, and all others that the host launches between the beginning and
the end of a proposal (of the eager engine: those of the draft's passes as well).

The emulated device computes on the host, so eagerly its work cannot be separated from the host's.
The device does the same in both modes. So the time in which it computed what the graph launches is
subtracted from both: ``host_us`` and ``host_ratio_to_eager`` are without it,
``total_ratio_to_eager`` is with it. Microseconds are of this machine and mean nothing by
themselves. Ratios are medians of repeats that take turns between the engines of one pair of models
and one K. With the defaults this starts 12 engines and takes about five minutes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from dataclasses import dataclass
from typing import Any

from benchmarks import host
from benchmarks.drafting import Engine, ratio
from benchmarks.graphs_engine import EAGER
from benchmarks.progress import say

MODE = "FULL_DECODE_ONLY"
CAPTURED = (1, 4, 8)
"""Numbers of requests that graphs are captured for."""

COUNTS = ("replays", "launches_outside_graph", "updates")


@dataclass(frozen=True)
class Pair:
    """Tiny models by name, and the method by which the second drafts for the first."""

    method: str
    target: str
    draft: str


PAIRS = (
    Pair("draft_model", "llama_target", "llama_draft"),
    Pair("draft_model", "llama_target", "gemma3_draft"),
    Pair("eagle3", "gpt_oss", "gpt_oss_eagle3"),
)

Repeats = dict[int, list[dict[str, Any]]]
"""What was measured, by the size of the batch."""


def measure(pair: Pair, k: int, batches: list[int], repeats: int) -> tuple[dict[str, Repeats], int]:
    """Repeats of both modes, in turns; and the number of the draft's KV groups."""
    from tests.support.tiny_models import model_directory

    scenario = {
        "method": pair.method,
        "target": str(model_directory(pair.target)),
        "draft": str(model_directory(pair.draft)),
        "k": k,
        "captured": CAPTURED,
    }
    engines = {
        mode: Engine({**scenario, "mode": mode}, "ascend,mkv_ascend", "benchmarks.graphs_engine")
        for mode in (EAGER, MODE)
    }
    for mode, engine in engines.items():
        engine.wait()
        say(f"{pair.target} + {pair.draft}, K={k}: engine {mode}")
    found: dict[str, Repeats] = {mode: {} for mode in engines}
    for batch in batches:
        for repeat in range(repeats + 1):
            for mode, engine in engines.items():
                measured = engine.measure(batch)
                if repeat:  # the first round warms up
                    found[mode].setdefault(batch, []).append(measured)
    groups = engines[MODE].facts["groups"]
    for engine in engines.values():
        engine.stop()
    return found, groups


def rows(
    method: str, groups: int, k: int, batch: int, found: dict[str, Repeats]
) -> list[dict[str, Any]]:
    """One row for each mode; ratios are of the same repeat, then the median.

    Raises:
        RuntimeError: a count was not the same in all repeats.
    """
    in_graphs = found[MODE][batch]
    beside = {mode: host_times(of_mode[batch], in_graphs) for mode, of_mode in found.items()}
    return [
        {
            "method": method,
            "g": groups,
            "k": k,
            "b": batch,
            "mode": mode,
            **{name: count(name, of_mode[batch]) for name in COUNTS},
            "host_us": round(statistics.median(one["host_us"] for one in beside[mode])),
            "host_ratio_to_eager": ratio(beside[mode], beside[EAGER]),
            "total_ratio_to_eager": ratio(totals(of_mode[batch]), totals(found[EAGER][batch])),
        }
        for mode, of_mode in found.items()
    ]


def host_times(
    repeats: list[dict[str, Any]], in_graphs: list[dict[str, Any]]
) -> list[dict[str, float]]:
    """Time less what the emulated device computed: in graphs as measured, eagerly as much.

    The launches of a graph are those that the eager passes make, so the device does the same.
    """
    pairs = zip(repeats, in_graphs, strict=True)
    return [{"host_us": one["total_us"] - other["graph_us"]} for one, other in pairs]


def totals(repeats: list[dict[str, Any]]) -> list[dict[str, float]]:
    """Time with what the emulated device computed."""
    return [{"host_us": one["total_us"]} for one in repeats]


def count(name: str, repeats: list[dict[str, Any]]) -> int:
    """A count, which is the same in all repeats."""
    values = {one[name] for one in repeats}
    if len(values) != 1:
        raise RuntimeError(f"{name} is not the same in all repeats: {sorted(values)}")
    return int(values.pop())


def as_table(result: dict[str, Any]) -> str:
    """The result for a terminal."""
    lines = [
        f"On vllm-ascend {result['host']}, per proposal, the draft's passes included",
        "",
        f"{'method':<12}{'K':>3}{'G':>3}{'B':>4}  {'mode':<18}{'replays':>8}"
        f"{'other launches':>16}{'updates':>9}{'host us':>9}{'host / eager':>14}",
    ]
    lines += [
        f"{one['method']:<12}{one['k']:>3}{one['g']:>3}{one['b']:>4}  {one['mode']:<18}"
        f"{one['replays']:>8}{one['launches_outside_graph']:>16}{one['updates']:>9}"
        f"{one['host_us']:>9}{one['host_ratio_to_eager']:>14}"
        for one in result["rows"]
    ]
    return "\n".join(lines)


def run(ks: list[int], batches: list[int], repeats: int) -> dict[str, Any]:
    """``{"host": ..., "rows": [...]}``."""
    found = []
    for pair in PAIRS:
        for k in ks:
            measured, groups = measure(pair, k, batches, repeats)
            for batch in batches:
                found += rows(pair.method, groups, k, batch, measured)
    return {"host": host.installed(), "rows": found}


def main() -> None:
    """Print the result as a table, or with ``--json`` as JSON."""
    parser = argparse.ArgumentParser(
        prog="benchmarks.graphs",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--k", type=int, nargs="+", default=[1, 4], help="draft tokens")
    parser.add_argument("--b", type=int, nargs="+", default=[1, 3, 8], help="requests, at most 8")
    parser.add_argument("--repeats", type=int, default=5, help="measurements of each")
    host.add_option(parser)
    arguments = parser.parse_args()
    try:
        host.go_on_with(arguments.host, "benchmarks.graphs", sys.argv[1:])
    except LookupError as error:
        parser.error(str(error))
    if not all(1 <= batch <= max(CAPTURED) for batch in arguments.b):
        parser.error(f"--b {arguments.b}: batches of 1 to {max(CAPTURED)} requests")
    result = run(arguments.k, arguments.b, arguments.repeats)
    print(json.dumps(result, indent=2) if arguments.json else as_table(result))


if __name__ == "__main__":
    main()
