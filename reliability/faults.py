# SPDX-License-Identifier: Apache-2.0
"""A real server that is hit while it works: signals, faults of the device, a client that stalls.

Each case, drawn by its number and a seed, sends requests, and at a random moment

- SIGKILL, SIGTERM, or SIGSTOP and then SIGCONT to the API server, the engine core or a worker;
- a launch of the emulated NPU that fails, ends the process, takes seconds, or gives NaN or a bit
  that is another one; an allocation that finds no memory;
- a client that stops reading its stream;
- a clock that jumps (``--kinds clock``), or a /dev/shm that is full for some seconds (``memory``);
- writes of the draft's caches that are lost for a while (``stale``, of ``--pair mla``);
- SIGKILL, SIGTERM or a failing launch while the server starts, before any request.

Checked: no client hangs; each request is answered or fails, and what was answered is right, but
where the device gave wrong numbers; a server that dies has an exit status other than 0, and no
process or shared memory outlives it; one that lives, or is started again, gives the right tokens.
`--stock` runs vllm-ascend without the plugin: what differs there is vLLM's.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from reliability import load
from reliability.fault_cases import ALONE, KINDS, Case, draw
from reliability.fault_running import REQUESTS, FaultyServer
from reliability.fault_verdicts import Verdict
from reliability.machine import MachineError, machine_of

STALE_PAIR = "mla"
"""Its target's caches are written by an operator of their own."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the options of the command on ``parser``."""
    load.add_server_arguments(parser)
    load.add_choice_of_server(parser)
    parser.add_argument("--first", type=int, default=0, help="number of the first case (0)")
    parser.add_argument("--count", type=int, default=10, help="how many cases (10)")
    parser.add_argument(
        "--kinds",
        nargs="+",
        choices=[*KINDS],
        default=[kind for kind in KINDS if kind not in ALONE],
        help="of faults (all but clock, memory and stale, each of which takes a run of its own)",
    )
    parser.add_argument(
        "--requests",
        type=int,
        default=REQUESTS,
        help=f"sent at once with each fault ({REQUESTS}); fewer where the machine is so slow that "
        "the last of them wait long for their turn",
    )
    parser.add_argument("--keep", type=Path, metavar="FILE", help="note verdicts there, and go on")


def run(asked: argparse.Namespace) -> int:
    """Run the cases; returns the exit status."""
    if "stale" in asked.kinds and (asked.pair != STALE_PAIR or asked.no_draft):
        print(
            "--kinds stale loses what a dense draft beside an MLA target writes into its caches; "
            f"serve it: --pair {STALE_PAIR}",
            file=sys.stderr,
        )
        return 2
    kept = _kept(asked)
    with tempfile.TemporaryDirectory(prefix="reliability") as temporary:
        folder = asked.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        try:
            machine = machine_of(asked.kinds, folder)
        except MachineError as error:
            print(error, file=sys.stderr)
            return 2
        setting = load.setting_of(asked)
        with FaultyServer(setting, folder, machine, asked.requests) as server:
            for number in range(asked.first, asked.first + asked.count):
                case = draw(asked.seed, number, asked.kinds, asked.ranks, of_stock=asked.stock)
                if case.describe() not in kept:
                    kept[case.describe()] = _judged(server, case, asked)
    if asked.json:
        print(json.dumps([asdict(verdict) for verdict in kept.values()], indent=1))
    failed = [verdict for verdict in kept.values() if verdict.problems]
    print(f"{len(kept)} faults, {len(failed)} with problems", file=sys.stderr)
    return 1 if failed else 0


def _judged(server: FaultyServer, case: Case, asked: argparse.Namespace) -> Verdict:
    began = time.monotonic()
    verdict = server.judge(case)
    print(f"{verdict.describe()} ({time.monotonic() - began:.0f} s)", file=sys.stderr)
    for problem in verdict.problems:
        print(f"  {problem}", file=sys.stderr)
    for problem in verdict.of_vllm:
        print(f"  vLLM's: {problem}", file=sys.stderr)
    sys.stderr.flush()
    if asked.keep:
        with asked.keep.open("a") as file:
            file.write(json.dumps(asdict(verdict)) + "\n")
    return verdict


def _kept(asked: argparse.Namespace) -> dict[str, Verdict]:
    """Verdicts of earlier runs, by case."""
    if asked.keep is None or not asked.keep.exists():
        return {}
    lines = asked.keep.read_text().splitlines()
    verdicts = [Verdict(**json.loads(line)) for line in lines]
    return {verdict.case: verdict for verdict in verdicts}
