# SPDX-License-Identifier: Apache-2.0
"""Run vllm-ascend's own tests, from a checkout that you give, on the emulated NPU.

    .venv/bin/python tools/upstream_tests.py --repo DIR [--suite operators|unit] [--only PART ...]

DIR is a clone of vllm-ascend at the tag of the installed wheel. What is tested is the wheel, with
mkv_ascend in the platform's seat; of the checkout only tests/ is read, and nothing is written.

operators: its on-device operator tests (tests/e2e/nightly/**/ops), each file in a process of its
own, strict, with Triton. unit: its unit tests (tests/ut), a folder at a time.

A test ends as passed, skipped (by itself), not applicable (with the reason, from
tools/upstream_reasons.py) or failed. The exit status is 1 if one failed.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import upstream_reasons

TOOLS = Path(__file__).resolve().parent

PASSED, SKIPPED, NOT_APPLICABLE, FAILED = "passed", "skipped", "not applicable", "failed"

SUITES = ("operators", "unit")

SECONDS_OF_A_TEST = 120
SECONDS_OF_A_PROCESS = 1200


@dataclass(frozen=True)
class Outcome:
    """How one test ended; ``reason`` is its message or, where it does not apply, why."""

    test: str
    outcome: str
    reason: str = ""


@dataclass(frozen=True)
class Batch:
    """Test files that one process runs."""

    suite: str
    files: tuple[Path, ...]


def batches(repository: Path, suite: str, only: Sequence[str]) -> list[Batch]:
    """The files of ``suite`` whose path holds one of ``only``: by file, or by folder."""
    if suite == "operators":
        found = (repository / "tests/e2e/nightly").rglob("test_*.py")
        files = sorted(path for path in found if "ops" in path.parts)
    else:
        files = sorted((repository / "tests/ut").rglob("test_*.py"))
    chosen = [path for path in files if not only or any(part in str(path) for part in only)]
    if suite == "operators":
        return [Batch(suite, (path,)) for path in chosen]
    folders = dict.fromkeys(path.parent for path in chosen)
    return [
        Batch(suite, tuple(path for path in chosen if path.parent == folder)) for folder in folders
    ]


def command(batch: Batch, repository: Path, report: Path) -> list[str]:
    """The process of one batch."""
    emulate = [sys.executable, "-m", "mkv_ascend", "emulate", "--strict", "--triton", "--"]
    conftests = "tests/e2e/nightly" if batch.suite == "operators" else "tests/ut"
    return [
        *emulate,
        *(sys.executable, "-m", "pytest", "-p", "upstream_seat", "-p", "no:cacheprovider"),
        *("-q", "--tb=short", f"--rootdir={repository}"),
        # Other conftest files import what operator tests do not need.
        f"--confcutdir={repository / conftests}",
        f"--timeout={SECONDS_OF_A_TEST}",
        f"--junitxml={report}",
        *map(str, batch.files),
    ]


def environment(stand_ins: Path) -> dict[str, str]:
    """One thread, no files written beside the tests, and a device that is reported to be there."""
    path = os.pathsep.join([str(TOOLS), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": path,
        "PATH": f"{stand_ins}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
    }


def make_stand_ins(folder: Path) -> None:
    """``npu-smi``, by whose exit status the unit tests tell whether there is a device.

    Without one they put mocks in the place of torch_npu.
    """
    program = folder / "npu-smi"
    program.write_text("#!/bin/sh\nexit 0\n")
    program.chmod(0o755)


def run(batch: Batch, repository: Path) -> list[Outcome]:
    """Run ``batch``; where its process dies, each of its files alone."""
    with tempfile.TemporaryDirectory() as folder:
        make_stand_ins(Path(folder))
        report = Path(folder, "report.xml")
        output = _output_of(command(batch, repository, report), Path(folder))
        if report.is_file():
            return [judged(*case) for case in cases(report)]
    if len(batch.files) > 1:
        alone = [Batch(batch.suite, (path,)) for path in batch.files]
        return [outcome for one in alone for outcome in run(one, repository)]
    name = str(batch.files[0].relative_to(repository))
    return [judged(name, FAILED, f"the process ended: {output[-600:]}")]


def _output_of(line: Sequence[str], folder: Path) -> str:
    log = folder / "log.txt"
    with log.open("w") as file:
        try:
            subprocess.run(
                line,
                cwd=folder,
                env=environment(folder),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                timeout=SECONDS_OF_A_PROCESS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            file.write(f"\nno end within {SECONDS_OF_A_PROCESS} s")
    return log.read_text(errors="replace")


def cases(report: Path) -> Iterator[tuple[str, str, str]]:
    """Test id, outcome and error of each test in pytest's report."""
    for case in ElementTree.parse(report).iter("testcase"):
        name = f"{case.get('classname', '')}::{case.get('name', '')}"
        bad = [child for child in case if child.tag in ("failure", "error")]
        if bad:
            yield name, FAILED, f"{bad[0].get('message', '')}\n{bad[0].text or ''}"
        elif (skipped := case.find("skipped")) is not None:
            yield name, SKIPPED, skipped.get("message", "")
        else:
            yield name, PASSED, ""


def judged(test: str, outcome: str, error: str) -> Outcome:
    """The outcome, with the written reason where a failed test has one."""
    if outcome != FAILED:
        return Outcome(test, outcome, error)
    why = upstream_reasons.reason_for(test, error)
    return Outcome(test, FAILED, error) if why is None else Outcome(test, NOT_APPLICABLE, why)


def run_all(todo: Sequence[Batch], repository: Path, jobs: int) -> Iterator[list[Outcome]]:
    """The outcomes of all batches, as they come, from ``jobs`` processes side by side."""
    waiting: queue.SimpleQueue[Batch] = queue.SimpleQueue()
    for batch in todo:
        waiting.put(batch)
    done: queue.SimpleQueue[tuple[Batch, list[Outcome]]] = queue.SimpleQueue()

    def work() -> None:
        while True:
            try:
                batch = waiting.get_nowait()
            except queue.Empty:
                return
            done.put((batch, run(batch, repository)))

    for _ in range(jobs):
        threading.Thread(target=work, daemon=True).start()
    started = time.monotonic()
    for finished in range(1, len(todo) + 1):
        batch, outcomes = done.get()
        where = batch.files[0] if len(batch.files) == 1 else batch.files[0].parent
        say = f"[{time.monotonic() - started:5.0f} s] {finished}/{len(todo)}"
        print(f"{say} {where.relative_to(repository)}: {counted(outcomes)}", file=sys.stderr)
        yield outcomes


def counted(outcomes: Iterable[Outcome]) -> str:
    """How many ended in which way."""
    counts = Counter(outcome.outcome for outcome in outcomes)
    order = (PASSED, SKIPPED, NOT_APPLICABLE, FAILED)
    return ", ".join(f"{counts[name]} {name}" for name in order if counts[name]) or "no tests"


def report_of(outcomes: Sequence[Outcome]) -> str:
    """The closing report: failures, reasons with how many tests they are for, and the sums."""
    lines = []
    for outcome in outcomes:
        if outcome.outcome == FAILED:
            first = next(iter(outcome.reason.strip().splitlines()), "")
            lines.append(f"FAILED {outcome.test}\n    {first[:200]}")
    reasons = Counter(one.reason for one in outcomes if one.outcome == NOT_APPLICABLE)
    lines += [f"not applicable ({number}): {reason}" for reason, number in reasons.most_common()]
    return "\n".join([*lines, counted(outcomes)])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repo", type=Path, required=True, metavar="DIR", help="the checkout")
    parser.add_argument("--suite", choices=SUITES, help="only this one")
    parser.add_argument("--only", nargs="+", default=[], metavar="PART", help="parts of file names")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="processes (default: 2)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every outcome there")
    options = parser.parse_args(arguments)
    repository = options.repo.resolve()
    if not (repository / "tests" / "ut").is_dir():
        parser.error(f"{repository} has no tests/ut: give a checkout of vllm-ascend")
    suites = [options.suite] if options.suite else SUITES
    todo = [batch for suite in suites for batch in batches(repository, suite, options.only)]
    if not todo:
        parser.error(f"no test file of the checkout has one of {options.only} in its path")
    outcomes = [one for some in run_all(todo, repository, options.jobs) for one in some]
    if options.json:
        text = json.dumps([asdict(outcome) for outcome in outcomes], indent=1)
        options.json.write_text(text + "\n", encoding="utf-8")
    print(report_of(outcomes))
    return int(any(outcome.outcome == FAILED for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
