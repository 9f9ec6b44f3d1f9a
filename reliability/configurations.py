# SPDX-License-Identifier: Apache-2.0
"""Configurations drawn at random through the one planner: a plan or a named refusal, within 2 s.

Each is a ``vllm serve`` command with models of its own, judged as ``mkv-ascend check`` judges it:
no weights, no NPU, no engine. A traceback, an empty refusal or a late answer is a failure.

With --keep, what is done is kept in a folder, and the same command goes on from there.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import transformers  # noqa: F401 - once, or every plan asks a process of its own

from mkv_ascend.adapters import installed
from mkv_ascend.attention.entry import DeviceGeneration
from mkv_ascend.checks.facts import DeviceFacts
from mkv_ascend.checks.judging import judge
from mkv_ascend.checks.refusal import RefusedError
from mkv_ascend.checks.served import served
from mkv_ascend.commands.serve_arguments import CommandError, read_command
from reliability.drawn_commands import Drawn, draw

SLOW_SECONDS = 2.0
"""Of a processor; more is a failure."""
HANG_SECONDS = 60
"""An answer that takes longer is not waited for."""
PROGRESS = "progress.json"
WARM_UP = 20
"""Configurations of another seed; some of them are planned."""
SAVED_EVERY = 200


@dataclass(frozen=True)
class Answer:
    """``kind``: planned, unplanned, refused, unreadable or failed; ``words``: what was said."""

    kind: str
    words: str = ""
    seconds: float = 0.0


@dataclass
class Progress:
    """What is done. ``kinds`` and ``codes``: how often; ``failures``: number and words."""

    seed: int
    next: int = 0
    slowest: float = 0.0
    slowest_number: int = -1
    seconds: float = 0.0
    kinds: Counter[str] = field(default_factory=Counter)
    codes: Counter[str] = field(default_factory=Counter)
    failures: list[dict[str, Any]] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return {**vars(self), "kinds": dict(self.kinds), "codes": dict(self.codes)}

    def add(self, number: int, answer: Answer) -> None:
        """Count an answer."""
        self.next = number + 1
        self.seconds += answer.seconds
        self.kinds[answer.kind] += 1
        if answer.kind == "refused":
            self.codes.update(answer.words.split())
        if answer.kind == "failed":
            self.failures.append({"number": number, "words": answer.words})
        if answer.seconds > self.slowest:
            self.slowest, self.slowest_number = answer.seconds, number


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the options of the command on ``parser``."""
    parser.add_argument("--count", type=int, default=1000, help="how many (1000)")
    parser.add_argument("--seed", type=int, default=1, help="what they are drawn with (1)")
    parser.add_argument("--only", type=int, metavar="NUMBER", help="show one, and its answer")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep progress there")


def run(asked: argparse.Namespace) -> int:
    """Judge them; returns the exit status."""
    if asked.only is not None:
        return _show(asked.seed, asked.only)
    progress = _resumed(asked.keep, asked.seed)
    warm_up()
    for number in range(progress.next, asked.count):
        answer = answer_to(drawn(asked.seed, number))
        progress.add(number, answer)
        if answer.kind == "failed":
            print(f"{number}: {answer.words}", file=sys.stderr)
        if progress.next % SAVED_EVERY == 0:
            _save(asked.keep, progress)
            print(f"\r{_line(progress)}", end="", file=sys.stderr, flush=True)
    _save(asked.keep, progress)
    print(f"\r{_line(progress)}", file=sys.stderr)
    if asked.json:
        print(json.dumps(progress.to_dict(), indent=1))
    return 1 if progress.failures else 0


def warm_up() -> None:
    """Import what the first plan imports, which would count as its time."""
    for number in range(WARM_UP):
        answer_to(drawn(0, number))


def drawn(seed: int, number: int) -> Drawn:
    """The command of this number, for a runner of the installed host."""
    return draw(seed, number, tuple(installed.adapter().RUNNERS))


def answer_to(one: Drawn) -> Answer:
    """What ``mkv-ascend check`` would say; never raises."""
    with tempfile.TemporaryDirectory() as folder:
        words = one.command(Path(folder))
        begin = time.process_time()
        try:
            with _ending():
                answer = _answer(one, words)
        except Exception as error:
            answer = Answer("failed", _last_words(error))
        seconds = time.process_time() - begin
    if seconds > SLOW_SECONDS and answer.kind != "failed":
        answer = Answer("failed", f"{answer.kind}, after {seconds:.1f} s: {answer.words}")
    return Answer(answer.kind, answer.words, seconds)


def _answer(one: Drawn, words: list[str]) -> Answer:
    device = DeviceFacts(one.devices, one.memory, DeviceGeneration.A2, "drawn")
    try:
        rules = installed.rules()
        facts, unplanned = judge(read_command(words, rules.vllm), device, rules, one.runner)
    except CommandError as error:
        return Answer("unreadable" if str(error) else "failed", str(error))
    except RefusedError as error:
        for refusal in error.refusals:
            if not (refusal.code and refusal.asked and refusal.possible and refusal.change):
                return Answer("failed", f"a part of {refusal!r} is missing")
        return Answer("refused", " ".join(refusal.code for refusal in error.refusals))
    served(facts, unplanned)
    return Answer("unplanned", unplanned) if unplanned else Answer("planned")


@contextmanager
def _ending() -> Iterator[None]:
    """End what takes too long, in the main thread of a program."""

    def end(number: int, frame: object) -> None:
        raise TimeoutError(f"no answer in {HANG_SECONDS} s")

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, HANG_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _last_words(error: Exception) -> str:
    *_, frame = traceback.extract_tb(error.__traceback__)
    said = f"{type(error).__name__}: {error}"[:300]
    return f"{said} ({Path(frame.filename).name}:{frame.lineno}, {frame.name})"


def _show(seed: int, number: int) -> int:
    warm_up()
    one = drawn(seed, number)
    answer = answer_to(one)
    print(json.dumps({**asdict(one), "answer": asdict(answer)}, indent=1))
    return 1 if answer.kind == "failed" else 0


def _resumed(folder: Path | None, seed: int) -> Progress:
    file = None if folder is None else folder / PROGRESS
    if file is None or not file.is_file():
        return Progress(seed)
    kept = Progress(**json.loads(file.read_text(encoding="utf-8")))
    if kept.seed != seed:
        raise SystemExit(f"{folder} has the progress of seed {kept.seed}, not of {seed}")
    kept.kinds, kept.codes = Counter(kept.kinds), Counter(kept.codes)
    return kept


def _save(folder: Path | None, progress: Progress) -> None:
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / PROGRESS).write_text(json.dumps(progress.to_dict(), indent=1), encoding="utf-8")


def _line(progress: Progress) -> str:
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(progress.kinds.items()))
    return (
        f"{progress.next} configurations: {kinds}; the slowest {progress.slowest:.2f} s "
        f"(number {progress.slowest_number})"
    )
