# SPDX-License-Identifier: Apache-2.0
"""Engines drawn at random in processes of their own; each token of target and draft is judged."""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict

from benchmarks.host import RUNNERS
from benchmarks.matrix.running import FAILS
from reliability import judging, scenarios

PAIRS = {"attention": scenarios.ATTENTION, "states": scenarios.STATES}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the options of the command on ``parser``."""
    parser.add_argument("--first", type=int, default=0, help="number of the first case (0)")
    parser.add_argument("--count", type=int, default=10, help="how many cases (10)")
    parser.add_argument(
        "--pairs", choices=[*PAIRS, "all"], default="all", help="models to draw from (all)"
    )


def run(asked: argparse.Namespace) -> int:
    """Run the cases; returns the exit status."""
    pairs = PAIRS.get(asked.pairs, tuple(pair for found in PAIRS.values() for pair in found))
    found = []
    for number in range(asked.first, asked.first + asked.count):
        case = scenarios.draw(number, pairs, dict(RUNNERS[asked.runner]))
        started = time.monotonic()
        verdict = judging.judge(case)
        found.append({"case": case.describe(), **asdict(verdict)})
        said = f"{verdict.result} in {time.monotonic() - started:.0f} s  {case.describe()}"
        print(said, verdict.reason, sep="\n  " if verdict.reason else "", file=sys.stderr)
    if asked.json:
        print(json.dumps(found, indent=1))
    failed = [one for one in found if one["result"] == FAILS]
    print(f"{len(found)} cases, {len(failed)} failed", file=sys.stderr)
    return 1 if failed else 0
