# SPDX-License-Identifier: Apache-2.0
"""Run the matrix of targets and drafts: ``python -m benchmarks.matrix`` (``make matrix``).

Every cell is run on this plugin, eagerly, in ACL graphs, and in graphs with prefix hits and
asynchronous scheduling, and on stock vllm-ascend. It runs on the emulated NPU and is compared with
plain loops over Hugging Face models: tokens, every draft token, what is accepted. Verdicts are kept
in .cache/matrix, so that a run that was stopped goes on. When all cells have one, docs/matrix.json
and the pages made from it are written.

With ``--host 0.30`` it runs in the environment with that vllm-ascend, and there on this plugin
alone unless ``--side`` says otherwise. It publishes columns beside those of the first host. With
``--runner v2`` too, cells are run by model runner V2, whose columns are further ones.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections import Counter
from collections.abc import Sequence

from benchmarks import host
from benchmarks.matrix import cells, store, table
from benchmarks.matrix.progress import Task, run_tasks
from benchmarks.matrix.running import (
    FAILS,
    GRAPH,
    GRAPH_V2,
    HITS,
    HITS_V2,
    ON_V2,
    OURS,
    OURS_V2,
    SIDES,
    STOCK,
    Verdict,
)
from benchmarks.matrix.workers import Workers
from benchmarks.progress import say
from tests.support.tiny_models.store import is_kept

STOPPED = 130
"""Exit status of a run that was stopped by a signal, as shells have it."""


def build_parser() -> argparse.ArgumentParser:
    """The command's options."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.matrix",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--only",
        nargs="+",
        default=[],
        metavar="CELL",
        help="only these: dense/eagle3, dense/ for a target, /eagle3 for a draft",
    )
    parser.add_argument("--side", choices=SIDES, help="only this one")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="processes (default: 2)")
    parser.add_argument("--again", action="store_true", help="run also what was run before")
    parser.add_argument(
        "--publish",
        action="store_true",
        help="write docs/matrix.json from what is known; cells that were not run stay as they are",
    )
    host.add_option(parser)
    host.add_runner_option(parser)
    parser.add_argument("--list", action="store_true", help="list the cells and what is known")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit status is 1 if a cell fails or could not be run."""
    parser = build_parser()
    options = parser.parse_args(arguments)
    given = sys.argv[1:] if arguments is None else arguments
    try:
        host.go_on_with(options.host, "benchmarks.matrix", given)
        host.require_runner("v2" if options.side in ON_V2 else options.runner)
        every = cells.find_cells(options.only)
    except (LookupError, ValueError) as error:
        parser.error(str(error))
    chosen = [cell for cell in every if is_known_here(cell)]
    if not chosen:
        parser.error("vLLM 0.23.0 does not know the method of these cells: add --host 0.30")
    sides = [options.side] if options.side else sides_by_default(options.runner)
    verdicts = {
        (cell.name, side): verdict
        for cell in chosen
        for side in sides
        if (verdict := store.find(cell, side)) is not None and not options.again
    }
    if options.list or options.publish:
        print_verdicts(chosen, sides, verdicts)
        if options.publish and options.only:
            parser.error("--publish writes the whole matrix: leave --only out")
        return publish(every, verdicts) if options.publish else 0
    pending = [
        (cell, side) for side in sides for cell in chosen if (cell.name, side) not in verdicts
    ]
    say(f"{len(chosen)} cells; of {len(chosen) * len(sides)} runs {len(pending)} are to be done")
    if pending and not run_pending(pending, options.jobs, verdicts):
        return STOPPED
    print_verdicts(chosen, sides, verdicts)
    if len(verdicts) < len(chosen) * len(sides):
        say("some cells could not be run; their output is above")
        return 1
    if not options.only and not options.side:
        publish(every, verdicts)
    failed = [name for (name, side), verdict in verdicts.items() if is_failure(side, verdict)]
    return int(bool(failed))


def is_known_here(cell: cells.Cell) -> bool:
    """Whether this environment's vLLM has the method of the cell."""
    return not (table.is_first_host() and table.unknown_to_first_host(cell))


def sides_by_default(runner: str) -> list[str]:
    """Stock too on the host that the rows of docs/matrix.json are of; on others, this plugin."""
    if runner == "v2":
        return [OURS_V2, GRAPH_V2, HITS_V2]
    ours = [OURS, GRAPH, HITS]
    return [*ours, STOCK] if table.is_first_host() else ours


def run_pending(
    pending: Sequence[Task], jobs: int, verdicts: dict[tuple[str, str], Verdict]
) -> bool:
    """Run tasks, keep their verdicts and add them to ``verdicts``; False if that was stopped."""
    # Like Ctrl-C: whatever was started is ended first.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    workers = Workers()
    try:
        make_models([cell for cell, _ in pending], jobs, workers)
        for cell, side, verdict in run_tasks(pending, jobs, workers):
            store.keep(cell, side, verdict)
            verdicts[cell.name, side] = verdict
    except KeyboardInterrupt:
        say("stopped; the next run goes on where this one was")
        return False
    finally:
        workers.end()
    return True


def is_failure(side: str, verdict: Verdict) -> bool:
    """Whether this plugin, not stock, fails."""
    return side != STOCK and verdict.outcome == FAILS


def publish(chosen: Sequence[cells.Cell], verdicts: table.Verdicts) -> int:
    """Write docs/matrix.json: what was run, and other cells as they were; the exit status."""
    matrix = table.as_json(chosen, verdicts, json.loads(table.PATH.read_text(encoding="utf-8")))
    table.write(matrix)
    count = len(matrix["cells"])
    say(f"wrote {table.PATH}: {count} cells; `make generate` writes the pages made from it")
    return 0


def make_models(chosen: Sequence[cells.Cell], jobs: int, workers: Workers) -> None:
    """Train the missing tiny models, before two engines wait for the same one.

    Raises RuntimeError, with what the training printed, if one could not be made.
    """
    models = dict.fromkeys(model for cell in chosen for model in cell.models)
    names = [model for model in models if not is_kept(model)]
    if not names:
        return
    command = [sys.executable, "-m", "tests.support.tiny_models", "--train", "--jobs", str(jobs)]
    with workers.started([*command, *names]) as process:
        printed, _ = process.communicate()
    if process.returncode:
        raise RuntimeError(f"tiny models could not be made:\n{printed[-3000:]}")


def print_verdicts(
    chosen: Sequence[cells.Cell],
    sides: Sequence[str],
    verdicts: table.Verdicts,
) -> None:
    """One line for each cell and side, and how many ended in which way."""
    counts: Counter[str] = Counter()
    for cell in chosen:
        for side in sides:
            verdict = verdicts.get((cell.name, side), Verdict("not run"))
            counts[f"{side}: {verdict.outcome}"] += 1
            rate = "" if verdict.acceptance is None else f"{verdict.acceptance:.2f}"
            print(f"{cell.name:<28}{side:<7}{verdict.outcome:<9}{rate:<6}{verdict.reason}".rstrip())
    print("; ".join(f"{what} {count}" for what, count in sorted(counts.items())))


if __name__ == "__main__":
    sys.exit(main())
