# SPDX-License-Identifier: Apache-2.0
"""Judges planted faults one after another, in forks; ``tools/planted_faults.py`` starts it.

It is run in the copy of the clone, on the emulated NPU. Standard input has a line of JSON for each
fault, and standard output gets one for each verdict. What takes longer than it may is ended with
all its engines, and so is this process, which cannot fork from them any more.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fault import Fault
from fault_workplace import ERRORS, planted
from pytest_forks import become_pytest, import_what_tests_import

HANGS = -9
"""Status of tests that were ended because they took too long."""


def pytest_in_a_fork(tests: Sequence[str], log: Path, seconds: float) -> int:
    """pytest's exit status, or HANGS."""
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        become_pytest(tests, log)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    return HANGS


def judge(order: dict[str, Any], place: Path) -> dict[str, Any]:
    """Run the tests of one order with its fault, or without one."""
    began, log = time.monotonic(), Path(order["log"])
    errors = place.parent / ERRORS
    errors.unlink(missing_ok=True)
    fault = Fault(**order["fault"]) if order["fault"] else None
    with planted(fault, place) if fault else contextlib.nullcontext():
        status = pytest_in_a_fork(order["tests"], log, order["seconds"])
    return {
        "name": order["name"],
        "status": status,
        "seconds": round(time.monotonic() - began, 1),
        "errors": errors.read_text("utf-8") if errors.is_file() else "",
    }


def end_descendants() -> None:
    """End the tests of this process, and every engine that they have started."""
    import psutil

    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def be_terminated(*_: object) -> None:
    """End in the middle of a test, with all that it has started; the fault is taken back."""
    end_descendants()
    sys.exit("terminated")


def main() -> int:
    signal.signal(signal.SIGTERM, be_terminated)
    place = Path.cwd()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sys.path.insert(0, str(place))
    import_what_tests_import()
    for line in sys.stdin:
        answer = judge(json.loads(line), place)
        print(json.dumps(answer), file=answers, flush=True)
        if answer["status"] == HANGS:
            end_descendants()
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
