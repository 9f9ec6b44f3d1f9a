# SPDX-License-Identifier: Apache-2.0
"""Plant faults in our code, one at a time, and see whether the tests that ought to notice do.

    .venv/bin/python tools/planted_faults.py                    go on where the last run stopped
    .venv/bin/python tools/planted_faults.py recurrent.py       those of a file, or of this name
    .venv/bin/python tools/planted_faults.py --sample 40
    .venv/bin/python tools/planted_faults.py --host 0.30

The faults stand in tools/fault_lists. Each is planted in a copy of the clone; the tests that it
names must pass there without it, and fail with it, each time in a new process on the emulated NPU.

Verdicts are kept in .cache/planted_faults/HOST.json. A fault is judged anew when its text, its file
or a file of its tests has changed. The exit status is 1 if a fault that was asked for is not
caught, or the list is out of date.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import itertools
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hosts import DEFAULT, HOSTS

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache" / "planted_faults"
COPIED = ("mkv_ascend", "tests", "tools", "benchmarks", "reliability", "examples", "docs", "csrc")
"""What tests read, and what is changed. All else of the clone is linked beside the copy."""
LEFT_OUT = (".cache", ".git", "build")
SECONDS = 600.0
"""After which tests count as hanging, which is noticed."""

CAUGHT, SURVIVES, SAME = "caught", "survives", "does the same"
BROKEN = "breaks"
"""Nothing could be imported, or no test ran: that is no fault of meaning. Write it anew."""
UNNAMED = re.compile(r"\b(SyntaxError|ImportError|ModuleNotFoundError|NameError)\b: .*")
NOTICED = re.compile(r"^E +(\S.*)", re.MULTILINE)


class OutOfDateError(ValueError):
    """A fault does not fit the sources any more; the message says what to change."""


@dataclass(frozen=True)
class Fault:
    """A wrong line of ours.

    Attributes:
        name: of its own, which stays when lines move.
        file: in ``mkv_ascend/ROOM``; a kernel's is a path of the clone.
        text: what is replaced; it occurs once in the file.
        instead: what stands there then.
        wrong: what goes wrong, in one sentence.
        tests: for pytest, those that ought to notice; the cheapest first.
        host: of tools/hosts.py, on which the tests run.
        room: the folder of ``mkv_ascend`` that the file is in.
        same: why the fault changes nothing that could be noticed; then no test is run.
    """

    name: str
    file: str
    text: str
    instead: str
    wrong: str
    tests: tuple[str, ...] = ()
    host: str = DEFAULT
    room: str = "adapters"
    same: str = ""

    @property
    def path(self) -> str:
        """Of the file, in the clone."""
        return self.file if self.file.startswith("csrc/") else f"mkv_ascend/{self.room}/{self.file}"

    @property
    def test_files(self) -> tuple[str, ...]:
        """The files that its tests are in."""
        return tuple(dict.fromkeys(test.partition("::")[0] for test in self.tests))

    def planted(self, source: str) -> str:
        """The file's source with the fault.

        Raises:
            OutOfDateError: its text is not there, or is there more than once.
        """
        found = source.count(self.text)
        if found != 1:
            raise OutOfDateError(
                f"fault {self.name!r}: its text occurs {found} times in {self.path}, not once; "
                "write it anew"
            )
        return source.replace(self.text, self.instead)

    def digest(self, root: Path) -> str:
        """Changes whenever the fault must be judged anew: with it, its file, or its tests."""
        texts = [(root / name).read_text("utf-8") for name in (self.path, *self.test_files)]
        parts = [self.text, self.instead, *self.tests, *texts]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def read_faults(folder: Path) -> tuple[Fault, ...]:
    """Faults of all lists in a folder; a text of several lines is a list of them there."""
    found = []
    for path in sorted(folder.glob("*.json")):
        for given in json.loads(path.read_text("utf-8")):
            texts = {name: _joined(given[name]) for name in ("text", "instead")}
            found.append(Fault(**{**given, **texts, "tests": tuple(given.get("tests", ()))}))
    return tuple(found)


def _joined(text: str | list[str]) -> str:
    return text if isinstance(text, str) else "\n".join(text)


FAULTS = read_faults(Path(__file__).resolve().parent / "fault_lists")


def check(faults: Sequence[Fault], root: Path) -> list[str]:
    """What is wrong with a list of faults; empty if every one can be planted."""
    names = Counter(fault.name for fault in faults)
    found = [f"two faults are named {name!r}" for name, number in names.items() if number > 1]
    for fault in faults:
        path = root / fault.path
        if not path.is_file():
            found.append(f"fault {fault.name!r}: there is no file {fault.path}")
            continue
        try:
            planted = fault.planted(path.read_text("utf-8"))
            if path.suffix == ".py":
                compile(planted, str(path), "exec")
        except (OutOfDateError, SyntaxError) as error:
            found.append(f"fault {fault.name!r}: {error}")
        if bool(fault.tests) == bool(fault.same):
            found.append(f"fault {fault.name!r}: name tests, or why it does the same")
        missing = [test for test in fault.tests if not _is_there(root, test)]
        found += [f"fault {fault.name!r}: there is no test {test}" for test in missing]
    return found


def _is_there(root: Path, test: str) -> bool:
    """Whether the file of a test is there, and a function of the test's name in it."""
    file, _, name = test.partition("::")
    path = root / file
    function = f"def {name.partition('[')[0]}(" if name else ""
    return path.is_file() and function in path.read_text("utf-8")


@dataclass
class Bench:
    """The copy of the clone in which faults of one host are planted, and what runs the tests."""

    root: Path
    place: Path
    launcher: Sequence[str]
    passing: dict[tuple[str, ...], bool] = field(default_factory=dict)
    _times: Iterator[int] = field(default_factory=lambda: itertools.count(int(time.time())))

    @contextlib.contextmanager
    def planted(self, fault: Fault) -> Iterator[None]:
        """The fault is in the copy meanwhile."""
        path = self.place / fault.path
        before = path.read_text("utf-8")
        try:
            self._write(path, fault.planted(before))
            yield
        finally:
            self._write(path, before)

    def _write(self, path: Path, text: str) -> None:
        """With a time of its own: Python tells compiled files by size and second."""
        path.write_text(text, encoding="utf-8")
        now = next(self._times)
        os.utime(path, (now, now))

    def run(self, tests: Sequence[str]) -> tuple[int | None, str]:
        """pytest's exit status, None where the tests hang; and its output."""
        words = ["-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
        with tempfile.TemporaryFile("w+") as output, subprocess.Popen(
            [*self.launcher, *words], cwd=self.place, env=self._environment(), stdout=output,
            stderr=output, start_new_session=True,
        ) as process:  # fmt: skip
            status: int | None = None
            try:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    status = process.wait(SECONDS)
            finally:
                if process.poll() is None:
                    _end_with_engines(process.pid)
            output.seek(0)
            return status, output.read()

    def _environment(self) -> dict[str, str]:
        """With the copy in the place of the clone."""
        folders = [str(self.place), *filter(None, [os.environ.get("PYTHONPATH")])]
        threads = {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
        return {**os.environ, **threads, "PYTHONPATH": os.pathsep.join(folders)}

    def judge(self, fault: Fault) -> tuple[str, str]:
        """What the tests make of a fault, and by which line they notice.

        Raises:
            SystemExit: they fail without it, so they would notice nothing.
        """
        if fault.tests not in self.passing:
            status, output = self.run(fault.tests)
            if status != 0:
                sys.exit(f"{output}\n{' '.join(fault.tests)}: these tests fail without a fault")
            self.passing[fault.tests] = True
        with self.planted(fault):
            return outcome_of(*self.run(fault.tests))


def outcome_of(status: int | None, output: str) -> tuple[str, str]:
    """What pytest's exit status means, and the line of its output that says why."""
    if status == 0:
        return SURVIVES, ""
    if status is None or status < 0:
        return CAUGHT, "hangs, or ends the process"
    unnamed, noticed = UNNAMED.search(output), NOTICED.search(output)
    if status != 1 or unnamed:
        return BROKEN, unnamed[0] if unnamed else output[-300:]
    return CAUGHT, noticed[1][:300] if noticed else ""


def _end_with_engines(pid: int) -> None:
    """End tests, and every engine that they have started: those have sessions of their own."""
    import psutil

    process = psutil.Process(pid)
    for one in [*process.children(recursive=True), process]:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()


@contextlib.contextmanager
def bench_of(host: str, root: Path = ROOT) -> Iterator[Bench]:
    """A bench whose copy is the clone as it is now."""
    tools = root / HOSTS[host].environment / "bin"
    emulate = (str(tools / "mkv-ascend"), "emulate", "--strict", "--float32-compute", "--")
    with tempfile.TemporaryDirectory(prefix="planted_faults_") as folder:
        place = Path(folder)
        for path in root.iterdir():
            if path.name in COPIED:
                shutil.copytree(path, place / path.name)
            elif path.name not in LEFT_OUT:
                (place / path.name).symlink_to(path)
        yield Bench(root, place, [*emulate, str(tools / "python")])


def run(faults: Sequence[Fault], bench: Bench, kept: Path) -> dict[str, dict[str, Any]]:
    """Judge what is not judged yet; verdicts by the names of these faults."""
    verdicts = json.loads(kept.read_text("utf-8")) if kept.is_file() else {}
    for fault in faults:
        digest = fault.digest(bench.root)
        if verdicts.get(fault.name, {}).get("digest") == digest:
            continue
        began = time.monotonic()
        outcome, reason = (SAME, fault.same) if fault.same else bench.judge(fault)
        verdicts[fault.name] = {"outcome": outcome, "reason": reason, "digest": digest}
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(verdicts, indent=2) + "\n", encoding="utf-8")
        print(f"{outcome:<9} {time.monotonic() - began:5.0f} s  {fault.name}: {reason}", flush=True)
    return {fault.name: verdicts[fault.name] for fault in faults}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("only", nargs="*", metavar="NAME", help="of faults or files; default: all")
    parser.add_argument("--host", default=DEFAULT, choices=sorted(HOSTS), help="%(default)s")
    parser.add_argument("--sample", type=int, metavar="N", help="N of them, always the same ones")
    given = parser.parse_args(arguments)
    for line in (found := check(FAULTS, ROOT)):
        print(line)
    if found:
        return 1
    faults = [
        fault
        for fault in FAULTS
        if fault.host == given.host
        and (not given.only or fault.name in given.only or fault.file.endswith(tuple(given.only)))
    ]
    if not faults:
        parser.error(f"no fault of host {given.host} is so named")
    if given.sample:
        faults = random.Random(0).sample(faults, min(given.sample, len(faults)))
    # Not at once, which would leave engines running.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated; the next run goes on"))
    with bench_of(given.host) as bench:
        verdicts = run(faults, bench, CACHE / f"{given.host}.json")
    print(dict(Counter(verdict["outcome"] for verdict in verdicts.values())))
    missed = [name for name, one in verdicts.items() if one["outcome"] in (SURVIVES, BROKEN)]
    print("\n".join(f"not caught: {name}" for name in missed))
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
