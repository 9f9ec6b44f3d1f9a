# SPDX-License-Identifier: Apache-2.0
"""Run cells in processes side by side, each process with the environment of its side."""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points

from benchmarks.matrix.cells import Cell
from benchmarks.matrix.running import GRAPH, GRAPH_V2, HITS, HITS_V2, ON_V2, STOCK, Verdict
from benchmarks.matrix.worker import MARK
from benchmarks.matrix.workers import Workers
from benchmarks.progress import say

Task = tuple[Cell, str]
"""A cell and a side."""

CELLS_OF_A_PROCESS = 8
"""A process imports vLLM once for that many cells; the next one starts anew."""

KEPT_LINES = 30
"""Last lines of a process's output, printed when it ends early."""


@dataclass(frozen=True)
class Batch:
    """Cells that one process runs one after another."""

    side: str
    triton: bool
    cells: tuple[Cell, ...]

    def command(self) -> list[str]:
        """The process: this plugin strict; stock vllm-ascend not, since it hands operators what
        their documentation does not allow."""
        strict = "--no-strict" if self.side == STOCK else "--strict"
        triton = "--triton" if self.triton else "--no-triton"
        emulate = [sys.executable, "-m", "mkv_ascend", "emulate", strict, "--float32-compute"]
        worker = [sys.executable, "-m", "benchmarks.matrix.worker", self.side]
        return [*emulate, triton, "--", *worker, *(cell.name for cell in self.cells)]

    def environment(self) -> dict[str, str]:
        """Which plugin claims the platform slot, and one thread for each process."""
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        environment.pop("VLLM_PLUGINS", None)
        if self.side == STOCK:
            environment["VLLM_PLUGINS"] = ",".join(plugins_but_ours())
        return environment


def plugins_but_ours() -> list[str]:
    """Names of all installed plugins of vLLM except this one; vllm-ascend has several.

    vLLM loads only what ``VLLM_PLUGINS`` names, of every kind.
    """
    kinds = ("vllm.platform_plugins", "vllm.general_plugins")
    names = {plugin.name for kind in kinds for plugin in entry_points(group=kind)}
    return sorted(names - {"mkv_ascend"})


def batches(tasks: Sequence[Task]) -> list[Batch]:
    """``tasks`` by environment, in pieces; those of graphs and of stock some way behind ours.

    All ask the reference the same questions, and only the first has to wait for the answers.
    """
    order = {name: place for place, name in enumerate(dict.fromkeys(c.name for c, _ in tasks))}
    kinds: dict[tuple[str, bool], list[Cell]] = {}
    for cell, side in tasks:
        kinds.setdefault((side, cell.triton or side in ON_V2), []).append(cell)
    made = [
        Batch(side, triton, tuple(cells[start : start + CELLS_OF_A_PROCESS]))
        for (side, triton), cells in kinds.items()
        for start in range(0, len(cells), CELLS_OF_A_PROCESS)
    ]
    lag = {
        GRAPH: 2 * CELLS_OF_A_PROCESS,
        GRAPH_V2: 2 * CELLS_OF_A_PROCESS,
        HITS: 2 * CELLS_OF_A_PROCESS,
        HITS_V2: 2 * CELLS_OF_A_PROCESS,
        STOCK: 3 * CELLS_OF_A_PROCESS,
    }
    return sorted(made, key=lambda one: order[one.cells[0].name] + lag.get(one.side, 0))


def run_tasks(
    tasks: Sequence[Task], jobs: int, workers: Workers
) -> Iterator[tuple[Cell, str, Verdict]]:
    """Verdicts as they come, from ``jobs`` processes; a task whose process dies has none."""
    waiting: queue.SimpleQueue[Batch] = queue.SimpleQueue()
    for batch in batches(tasks):
        waiting.put(batch)
    done: queue.SimpleQueue[tuple[Cell, str, Verdict] | None] = queue.SimpleQueue()
    threads = [threading.Thread(target=_work, args=(waiting, done, workers)) for _ in range(jobs)]
    for thread in threads:
        thread.start()
    finished, ended = 0, 0
    while ended < len(threads):
        answer = done.get()
        if answer is None:
            ended += 1
            continue
        finished += 1
        cell, side, verdict = answer
        say(f"{finished}/{len(tasks)} {cell.name} {side}: {verdict.outcome}, {verdict.seconds} s")
        yield answer


def _work(
    waiting: queue.SimpleQueue[Batch],
    done: queue.SimpleQueue[tuple[Cell, str, Verdict] | None],
    workers: Workers,
) -> None:
    try:
        while not workers.ended:
            batch = waiting.get_nowait()
            for cell, verdict in verdicts_of(batch, workers):
                done.put((cell, batch.side, verdict))
    except queue.Empty:
        pass
    finally:
        done.put(None)


def verdicts_of(batch: Batch, workers: Workers) -> Iterator[tuple[Cell, Verdict]]:
    """Run ``batch``. A cell in which the process itself dies has no verdict; the rest goes on."""
    left = {cell.name: cell for cell in batch.cells}
    while left:
        current = ""
        output: list[str] = []
        rest = Batch(batch.side, batch.triton, tuple(left.values()))
        with workers.started(rest.command(), rest.environment()) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if not line.startswith(MARK):
                    output = [*output[1 - KEPT_LINES :], line]
                    continue
                told: Mapping[str, object] = json.loads(line[len(MARK) :])
                current = str(told.get("started", current))
                if "outcome" in told:
                    yield left.pop(current), _verdict(told)
        if not left or workers.ended:
            return
        if not current or current not in left:
            current = next(iter(left))
        say(f"{current} {batch.side}: the process ended:\n{''.join(output)}")
        left.pop(current)


def _verdict(told: Mapping[str, object]) -> Verdict:
    fields = {name: value for name, value in told.items() if name != "cell"}
    return Verdict(**fields)  # type: ignore[arg-type]
