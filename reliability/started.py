# SPDX-License-Identifier: Apache-2.0
"""Configurations of tiny models: those that `check` lets pass are started, and must serve.

A number draws an engine as `engines` does, and beside it options that size caches and groups. It is
judged by the checks of `vllm serve` first; what passes them must start and give every token.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from benchmarks.host import RUNNERS
from benchmarks.matrix.running import FAILS, WORKS
from reliability import judging, scenarios
from reliability.scenarios import LONGEST, Case, Pair
from reliability.serving_options import with_options
from reliability.shortened import is_shortened, with_length

PAIRS = (*scenarios.ATTENTION, *scenarios.STATES)
UNPLANNED_LENGTH = LONGEST + 16
MEMORY = {
    "kv_cache_memory_bytes": (64 << 20, 16 << 20, 4 << 20, 1 << 20),
    "num_gpu_blocks_override": (200, 40, 6),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the options of the command on ``parser``."""
    parser.add_argument("--first", type=int, default=0, help="number of the first one (0)")
    parser.add_argument("--count", type=int, default=5, help="how many are started (5)")
    parser.add_argument(
        "--families",
        action="store_true",
        help="draw from all families and drafts of the matrix; draft tokens are not judged",
    )
    parser.add_argument(
        "--options",
        action="store_true",
        help="draw more options of `vllm serve` beside those of caches and groups",
    )


def run(asked: argparse.Namespace) -> int:
    """Start them; returns the exit status."""
    kinds: Counter[str] = Counter()
    found: list[dict[str, Any]] = []
    number, pairs = asked.first, scenarios.families() if asked.families else PAIRS
    while kinds["works"] + kinds["fails"] < asked.count:
        case = draw(number, dict(RUNNERS[asked.runner]), pairs, options=asked.options)
        if asked.options:
            case = with_options(case, asked.runner)
        codes, unplanned, longest = checked(case, asked.runner)
        if unplanned:
            # Only the engine knows its plan, and refuses memory that is too small for it.
            case = without_memory(case)
        elif is_shortened(case) and not codes:
            case = with_length(case, longest)
        verdict, reason = ("refused", codes) if codes else _served(case)
        kinds[verdict] += 1
        found.append({"case": case.describe(), "verdict": verdict, "reason": reason})
        print(f"{verdict}  {case.describe()}", reason, sep="\n  ", file=sys.stderr)
        number += 1
    if asked.json:
        print(json.dumps(found, indent=1))
    print(dict(kinds), file=sys.stderr)
    return 1 if kinds["fails"] else 0


def draw(
    number: int,
    environment: dict[str, str],
    pairs: Sequence[Pair] = PAIRS,
    *,
    options: bool = False,
) -> Case:
    """The engine of this number: of ``scenarios.draw``, with options of caches and groups.

    ``options``: whether more are drawn, with which drafts of a window are judged, too.
    """
    case = scenarios.draw(number, pairs, environment)
    chance = random.Random(f"started {number}")
    engine = dict(case.scenario.engine)
    for name, values in {"block_size": (128, 256, 384, 1024, 64), **MEMORY}.items():
        if chance.random() < 0.4:
            engine[name] = chance.choice(values)
    ours: dict[str, Any] = {"layout": {"shared_pages": False}} if chance.random() < 0.5 else {}
    if chance.random() < 0.2:
        ours["drafting"] = {"window": chance.choice((128, 200))}
    # Proposals that are noted are not scheduled ahead: what a number drew before stays as it is.
    judged = case.judged and (options or "drafting" not in ours) and pairs is PAIRS
    scenario = replace(
        case.scenario, engine=engine, mkv_ascend=ours, record_drafts=judged, force_preemption=False
    )
    return replace(case, scenario=scenario, judged=judged)


def without_memory(case: Case) -> Case:
    """With as much memory as engines of tests have, and as long a request as most of them."""
    kept = {name: value for name, value in case.scenario.engine.items() if name not in MEMORY}
    if is_shortened(case):
        kept["max_model_len"] = UNPLANNED_LENGTH
    return replace(case, scenario=replace(case.scenario, engine=kept))


def checked(case: Case, runner: str) -> tuple[str, str, int]:
    """What ``check`` says: codes of what it refuses, empty for nothing; why it has no plan, if so;
    tokens of the longest request."""
    from mkv_ascend.commands import host_process

    variables = {host_process.RUNNER: str(int(runner == "v2"))}
    question = {"engine": case.scenario.engine_arguments(), "device": host_process.THIS}
    answer = host_process.ask({**question, "plan": False}, variables, "check")
    if answer["answer"] == "refused":
        return " ".join(refusal["code"] for refusal in answer["refusals"]), "", 0
    return "", answer["unplanned"], answer["max_model_len"]


def _served(case: Case) -> tuple[str, str]:
    verdict = judging.judge(case)
    if verdict.result == WORKS:
        return "works", ""
    # A refusal behind `check` comes too late, however good its words are.
    word = "fails" if verdict.result == FAILS else "refused by the engine"
    return "fails", f"{word}: {verdict.reason}"
