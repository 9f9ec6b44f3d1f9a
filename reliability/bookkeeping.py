# SPDX-License-Identifier: Apache-2.0
"""Scheduler, block pool, prefix cache, planned groups and draft plan, without an engine.

Requests come, are computed in chunks, verified, rejected, aborted, preempted and found again in any
order. A model in plain Python knows who may write to each slot and what a reader must find there.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from collections.abc import Iterable
from typing import Any

NAMES = (
    "one group",
    "dense and windows",
    "mla, draft of windows",
    "states, dense draft",
    "draft in three groups",
    "head",
    "head of windows",
    "mask tokens",
    "pages of dense and windows",
    "pages of three groups",
    "pages of states",
    "pages of a head",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the options of the command on ``parser``."""
    parser.add_argument("--pair", choices=[*NAMES, "all"], default="all", help="models (all)")
    parser.add_argument("--runs", type=int, default=100, help="runs of each pair (100)")
    parser.add_argument("--steps", type=int, default=60, help="rules of a run, at most (60)")
    parser.add_argument("--seed", type=int, default=1, help="what they are drawn with (1)")


def run(asked: argparse.Namespace) -> int:
    """Run them; returns the exit status."""
    logging.disable(logging.INFO)
    names = NAMES if asked.pair == "all" else (asked.pair,)
    found = list(_run_each(names, asked))
    if asked.json:
        print(json.dumps(found, indent=1))
    failed = [one for one in found if one["failure"]]
    print(f"{len(found)} pairs, {len(failed)} failed", file=sys.stderr)
    return 1 if failed else 0


def _run_each(names: Iterable[str], asked: argparse.Namespace) -> Iterable[dict[str, Any]]:
    from hypothesis import HealthCheck, seed, settings
    from hypothesis.stateful import run_state_machine_as_test

    from tests.support.bookkeeping.machine import machine
    from tests.support.bookkeeping.plans import PAIRS

    size = settings(
        max_examples=asked.runs,
        stateful_step_count=asked.steps,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    for name in names:
        made, begin, failure = seed(asked.seed)(machine(PAIRS[name])), time.monotonic(), ""
        try:
            run_state_machine_as_test(made, settings=size)
        except Exception as error:
            # What does not hold here, or is asserted in vLLM's code or ours.
            words = f"{type(error).__name__}: {error}"
            failure = "\n".join([words, *getattr(error, "__notes__", ())])
        seconds = time.monotonic() - begin
        print(f"{name}: {seconds:.0f} s, {dict(made.seen)} {failure}", file=sys.stderr)
        yield {"pair": name, "seen": dict(made.seen), "seconds": seconds, "failure": failure}
