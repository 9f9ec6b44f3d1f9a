# SPDX-License-Identifier: Apache-2.0
"""Plant faults in our code, one at a time, and see whether the tests that ought to notice do.

    .venv/bin/python tools/planted_faults.py                      go on where the last run stopped
    .venv/bin/python tools/planted_faults.py --only gdn_rows.py   those of a file, or of this name
    .venv-0.30/bin/python tools/planted_faults.py --host 0.30
    .venv/bin/python tools/planted_faults.py --report --json FILE

The faults stand in tools/fault_lists. They are planted in a copy of the clone, in
.cache/planted_faults. The tests of a fault run on the emulated NPU, in a fork of a process that has
imported everything; the functions of the planted file are exchanged there. What survives that, and
what is not inside a function, meets a new process. First the tests run once without a fault, and
must pass.

Results are kept. A fault is judged anew when its text, its file or a file of its tests has changed.
The exit status is 1 if a fault survives, or the list is out of date.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

from fault import Fault, check, is_inside_functions, read_faults
from fault_results import BROKEN, PASSED, Results, outcome_of, table_of
from fault_server import HANGS
from fault_workplace import SITE, make_workplace, planted
from mutation_results import CAUGHT, SURVIVES, UNKNOWN
from pytest_forks import PYTEST

from hosts import DEFAULT, HOSTS

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache" / "planted_faults"
FAULTS = read_faults(Path(__file__).resolve().parent / "fault_lists")
SECONDS = 600.0
"""After which tests count as hanging."""


@dataclass
class Bench:
    """What faults of one host are judged with.

    Attributes:
        host: of tools/hosts.py.
        place: the copy of the clone.
    """

    host: str
    place: Path
    _server: subprocess.Popen[str] | None = field(default=None, init=False)

    def command(self, *program: str) -> list[str]:
        """``program`` by this host's Python, on the emulated NPU."""
        tools = ROOT / HOSTS[self.host].environment / "bin"
        emulate = (str(tools / "mkv-ascend"), "emulate", "--strict", "--float32-compute", "--")
        return [*emulate, str(tools / "python"), *program]

    def environment(self, **more: str) -> dict[str, str]:
        """With the copy in the place of the clone."""
        folders = [str(self.place), *filter(None, [os.environ.get("PYTHONPATH")])]
        threads = {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
        given = {
            key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"
        }
        site = [str((self.place.parent / SITE).parent)] if more else []
        return {**given, **threads, **more, "PYTHONPATH": os.pathsep.join([*site, *folders])}

    def log(self, name: str) -> Path:
        """The file for what pytest prints."""
        folder = self.place.parent / "logs"
        folder.mkdir(exist_ok=True)
        return folder / f"{re.sub(r'[^a-zA-Z0-9]+', '-', name)}.log"

    def in_a_fork(self, name: str, tests: Sequence[str], fault: Fault | None) -> dict[str, Any]:
        """The server's verdict; it is started where none runs."""
        if self._server is None:
            self._server = subprocess.Popen(
                self.command("tools/fault_server.py"),
                cwd=self.place,
                env=self.environment(PLANTED_FAULT_FOLDER=str(self.place.parent)),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        order = {
            "name": name,
            "tests": list(tests),
            "log": str(self.log(name)),
            "seconds": SECONDS,
            "fault": asdict(fault) if fault else None,
        }
        line = _ask(self._server, json.dumps(order))
        if not line:
            sys.exit("the process that judges faults ended; its error is printed above")
        answer: dict[str, Any] = json.loads(line)
        if answer["status"] == HANGS:
            self.stop()
        return answer

    def in_a_new_process(self, fault: Fault) -> int:
        """pytest's exit status where everything is imported with the fault."""
        with planted(fault, self.place), self.log(fault.name).open("w") as output:
            words = ["-m", "pytest", *PYTEST, *fault.tests]
            process = subprocess.Popen(
                self.command(*words),
                cwd=self.place,
                env=self.environment(),
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
            try:
                return process.wait(SECONDS)
            except subprocess.TimeoutExpired:
                return HANGS
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)

    def stop(self) -> None:
        """End the server: idle, it ends by itself; else in the middle of tests."""
        if self._server is None:
            return
        _stdin(self._server).close()
        try:
            self._server.wait(5)
        except subprocess.TimeoutExpired:
            self._server.terminate()
            self._server.wait(60)
        self._server = None


def _stdin(process: subprocess.Popen[str]) -> IO[str]:
    assert process.stdin is not None
    return process.stdin


def _ask(process: subprocess.Popen[str], line: str) -> str:
    assert process.stdout is not None
    _stdin(process).write(line + "\n")
    _stdin(process).flush()
    return process.stdout.readline()


@contextmanager
def bench_of(host: str) -> Iterator[Bench]:
    """A bench whose copy is the clone as it is now."""
    bench = Bench(host, make_workplace(ROOT, CACHE / host))
    try:
        yield bench
    finally:
        bench.stop()


def tests_pass(bench: Bench, faults: Iterable[Fault], results: Results) -> None:
    """Run the tests of these faults without any, as far as that is not known.

    Raises:
        SystemExit: one of them fails, so it would notice nothing.
    """
    tests = list(dict.fromkeys(test for fault in faults for test in fault.tests))
    digests = {test: results.digest_of_test(bench.place, test) for test in tests}
    left = [test for test in tests if results.passing.get(test) != digests[test]]
    # Those of a file share engines.
    for file in dict.fromkeys(test.partition("::")[0] for test in left):
        of_file = [test for test in left if test.partition("::")[0] == file]
        answer = bench.in_a_fork(f"none {file}", of_file, None)
        print(f"{'no fault':<9} {answer['seconds']:5.0f} s  {file}", flush=True)
        if answer["status"] != PASSED:
            log = bench.log(f"none {file}")
            sys.exit(f"{file} fails without a fault ({answer['status']}): see {log}")
        results.passing.update({test: digests[test] for test in of_file})
        results.save()


def judge(bench: Bench, fault: Fault) -> tuple[str, str]:
    """What the tests make of a fault, and by which line they notice."""
    before = (bench.place / fault.path).read_text("utf-8")
    log = bench.log(fault.name)
    if is_inside_functions(before, fault.planted(before)):
        answer = bench.in_a_fork(fault.name, fault.tests, fault)
        outcome, reason = outcome_of(answer["status"], log)
        if outcome == CAUGHT and not answer["errors"]:
            return outcome, reason
    # A fork has what its parent did with the right function, for instance at import.
    return outcome_of(bench.in_a_new_process(fault), log)


def run(host: str, faults: Sequence[Fault], results: Results) -> None:
    """Judge what is not judged yet."""
    with bench_of(host) as bench:
        left = [
            fault
            for fault in faults
            if not fault.same and results.outcome(fault, bench.place) == UNKNOWN
        ]
        tests_pass(bench, left, results)
        for fault in left:
            began = time.monotonic()
            outcome, reason = judge(bench, fault)
            results.note(fault, bench.place, outcome, reason)
            seconds = time.monotonic() - began
            print(f"{outcome:<9} {seconds:5.0f} s  {fault.name}: {reason}", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--host", default=DEFAULT, choices=sorted(HOSTS), help="%(default)s")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="of faults or files")
    parser.add_argument("--report", action="store_true", help="run nothing")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write verdicts there")
    given = parser.parse_args(arguments)
    for line in (found := check(FAULTS, ROOT)):
        print(line)
    if found:
        return 1
    faults = [fault for fault in FAULTS if fault.host == given.host and chosen(fault, given.only)]
    if not faults:
        parser.error(f"no fault of host {given.host} is so named")
    results = Results.read(CACHE / given.host / "results.json")
    # Not at once, which would leave engines running.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated; the next run goes on"))
    if not given.report:
        run(given.host, faults, results)
    verdicts = {fault: results.outcome(fault, ROOT) for fault in faults}
    print(table_of(verdicts))
    for fault, outcome in verdicts.items():
        if outcome in (SURVIVES, BROKEN):
            print(f"{outcome}: {fault.name} ({fault.path}): {fault.wrong}")
    if given.json is not None:
        text = json.dumps(results.to_dict(verdicts), indent=2)
        given.json.write_text(f"{text}\n", encoding="utf-8")
    return int(any(outcome in (SURVIVES, BROKEN) for outcome in verdicts.values()))


def chosen(fault: Fault, only: Sequence[str]) -> bool:
    """Whether its name, or the end of its file's path, is among these; all are by default."""
    return not only or any(fault.name == one or fault.file.endswith(one) for one in only)


if __name__ == "__main__":
    sys.exit(main())
