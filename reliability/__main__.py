# SPDX-License-Identifier: Apache-2.0
"""Run engines drawn at random, and judge each token of target and draft by Hugging Face.

    mkv-ascend emulate --strict --float32-compute -- python -m reliability --count 20
    mkv-ascend emulate --strict --float32-compute -- python -m reliability --first 17 --count 1

A case is a number: the same number draws the same engine again. Exit status 1: one failed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict

from benchmarks.host import RUNNERS, add_runner_option, require_runner
from benchmarks.matrix.running import FAILS
from reliability import judging, scenarios

PAIRS = {"attention": scenarios.ATTENTION, "states": scenarios.STATES}


def main(arguments: list[str] | None = None) -> int:
    """Run the cases; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m reliability",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--first", type=int, default=0, help="number of the first case (0)")
    parser.add_argument("--count", type=int, default=10, help="how many cases (10)")
    parser.add_argument(
        "--pairs", choices=[*PAIRS, "all"], default="all", help="models to draw from (all)"
    )
    parser.add_argument("--json", action="store_true", help="print the verdicts as JSON")
    add_runner_option(parser)
    asked = parser.parse_args(arguments)
    require_runner(asked.runner)
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


if __name__ == "__main__":
    sys.exit(main())
