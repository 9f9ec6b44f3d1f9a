# SPDX-License-Identifier: Apache-2.0
"""Run vllm-ascend's own tests, from a checkout that you give, on the emulated NPU.

    .venv/bin/python tools/upstream_tests.py --repo DIR [--suite operators|unit] [--only PART ...]

DIR is a clone of vllm-ascend at the tag of the installed wheel. What is tested is the wheel, with
mkv_ascend in the platform slot (or vllm-ascend itself, with --stock). Only tests/ of the checkout
is read, and nothing is written.

operators: its on-device operator tests (tests/e2e/nightly/**/ops). unit: its unit tests (tests/ut).
All run strict, with Triton, each file in a process of its own.

A test ends as passed, skipped (by itself), failed, or for a reason that is known
(tools/upstream_reasons.py): it cannot run here, the emulated NPU has a gap, or the test itself is
at fault. The exit status is 1 if one failed.

With --results FILE the outcomes of each file are kept as they come. A run that was broken off goes
on with the files that are not in FILE; what was kept is judged by the reasons of today.
"""

from __future__ import annotations

import argparse
import json
import queue
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path

import upstream_processes
import upstream_reasons
from upstream_processes import FAILED, PASSED, SKIPPED, Outcome, Runner, Setting

ORDER = (PASSED, SKIPPED, *upstream_reasons.KINDS, FAILED)

SUITES = ("operators", "unit")


@dataclass(frozen=True)
class Judgement:
    """What a test's outcome counts as; ``reason`` is its error or, where one is known, why."""

    file: str
    test: str
    outcome: str
    reason: str = ""


def judged(outcome: Outcome) -> Judgement:
    """The outcome, with the written reason where a failed test has one."""
    if outcome.outcome != FAILED:
        return Judgement(outcome.file, outcome.test, outcome.outcome, outcome.error)
    known = upstream_reasons.reason_for(outcome.test, outcome.error)
    if known is None:
        return Judgement(outcome.file, outcome.test, FAILED, outcome.error)
    return Judgement(outcome.file, outcome.test, known.kind, known.why)


def kept(results: Path | None) -> dict[str, list[Outcome]]:
    """By file of the checkout: the outcomes that a run has written down."""
    found: dict[str, list[Outcome]] = {}
    if results is not None and results.is_file():
        for line in results.read_text(encoding="utf-8").splitlines():
            entry = json.loads(line)
            found[entry["file"]] = [Outcome(**outcome) for outcome in entry["outcomes"]]
    return found


def keep(results: Path, file: str, outcomes: Sequence[Outcome]) -> None:
    """Write down how the tests of ``file`` ended; what is written later counts."""
    entry = {"file": file, "outcomes": [asdict(outcome) for outcome in outcomes]}
    with results.open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(entry) + "\n")


def outcomes_of(file: str, runner: Runner) -> list[Outcome]:
    """Run ``file``, unless there is a reason not to: that stands for all of its tests."""
    known = upstream_reasons.reason_not_to_run(file)
    return runner.run(file) if known is None else [Outcome(file, file, known.kind, known.why)]


def run_all(
    files: Sequence[str], setting: Setting, jobs: int
) -> Iterator[tuple[str, list[Outcome]]]:
    """The outcomes of each file, as they come, from ``jobs`` processes side by side."""
    waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
    for file in files:
        waiting.put(file)
    done: queue.SimpleQueue[tuple[str, list[Outcome] | Exception]] = queue.SimpleQueue()

    def work() -> None:
        with Runner(setting) as runner:
            while True:
                try:
                    file = waiting.get_nowait()
                except queue.Empty:
                    return
                try:
                    done.put((file, outcomes_of(file, runner)))
                except Exception as error:  # the thread would end, and be waited for in vain
                    done.put((file, error))
                    return

    for _ in range(min(jobs, len(files))):
        threading.Thread(target=work, daemon=True).start()
    started = time.monotonic()
    for finished in range(1, len(files) + 1):
        file, outcomes = done.get()
        if isinstance(outcomes, Exception):
            raise outcomes
        say = f"[{time.monotonic() - started:5.0f} s] {finished}/{len(files)}"
        print(f"{say} {file}: {counted(map(judged, outcomes))}", file=sys.stderr, flush=True)
        yield file, outcomes


def counted(judgements: Iterable[Judgement]) -> str:
    """How many ended in which way."""
    counts = Counter(judgement.outcome for judgement in judgements)
    return ", ".join(f"{counts[name]} {name}" for name in ORDER if counts[name]) or "no tests"


def folder_of(file: str) -> str:
    """The folder that a file is summed up under; of unit tests the first below tests/ut."""
    folders = file.split("/")[:-1]
    return "/".join(folders[:3] if folders[1] == "ut" else folders)


def table_of(judgements: Sequence[Judgement]) -> list[str]:
    """A table in Markdown: how the tests of each folder ended."""
    folders = {folder_of(one.file): Counter[str]() for one in judgements}
    for one in judgements:
        folders[folder_of(one.file)][one.outcome] += 1
    lines = [f"| folder | {' | '.join(ORDER)} |", "| --- |" + " ---: |" * len(ORDER)]
    for folder, counts in folders.items():
        lines.append(f"| {folder} | {' | '.join(str(counts[name]) for name in ORDER)} |")
    return lines


def report_of(judgements: Sequence[Judgement]) -> str:
    """The closing report: sums by folder, reasons with how many tests they are for, failures."""
    lines = [*table_of(judgements), ""]
    reasons = Counter(
        (one.outcome, one.reason) for one in judgements if one.outcome in upstream_reasons.KINDS
    )
    lines += [f"{kind} ({number}): {why}" for (kind, why), number in reasons.most_common()]
    for one in judgements:
        if one.outcome == FAILED:
            first = next(iter(one.reason.strip().splitlines()), "")
            lines.append(f"FAILED {one.test}\n    {first[:200]}")
    return "\n".join([*lines, counted(judgements)])


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--repo", type=Path, required=True, metavar="DIR", help="the checkout")
    made.add_argument("--suite", choices=SUITES, help="only this one")
    made.add_argument("--only", nargs="+", default=[], metavar="PART", help="parts of file names")
    made.add_argument("--stock", action="store_true", help="vllm-ascend in the platform slot")
    made.add_argument("--jobs", type=int, default=2, metavar="N", help="processes (default: 2)")
    made.add_argument(
        "--seconds",
        type=int,
        default=upstream_processes.SECONDS_OF_A_TEST,
        metavar="N",
        help="the longest that one test may take (default: %(default)s); a file: "
        f"{upstream_processes.TESTS_OF_A_FILE} times as long",
    )
    made.add_argument("--results", type=Path, metavar="FILE", help="keep outcomes there, and go on")
    made.add_argument("--again", action="store_true", help="run what FILE holds, too")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit status."""
    command_line = parser()
    options = command_line.parse_args(arguments)
    repository = options.repo.resolve()
    if not (repository / "tests" / "ut").is_dir():
        command_line.error(f"{repository} has no tests/ut: give a checkout of vllm-ascend")
    missing = [name for name in upstream_processes.IMPORTS if find_spec(name) is None]
    if missing:
        names = " ".join(name.replace("_", "-") for name in missing)
        command_line.error(f"the tests need what is not installed: run pip install {names}")
    suites = [options.suite] if options.suite else SUITES
    files = [
        file
        for suite in suites
        for file in upstream_processes.files_of(repository, suite, options.only)
    ]
    if not files:
        command_line.error(f"no test file of the checkout has one of {options.only} in its path")
    known = kept(options.results)
    todo = [file for file in files if options.again or file not in known]
    setting = Setting(repository, options.stock, options.seconds)
    for file, outcomes in run_all(todo, setting, options.jobs):
        known[file] = outcomes
        if options.results:
            keep(options.results, file, outcomes)
    judgements = [judged(outcome) for file in files for outcome in known[file]]
    print(report_of(judgements))
    return int(any(judgement.outcome == FAILED for judgement in judgements))


if __name__ == "__main__":
    sys.exit(main())
