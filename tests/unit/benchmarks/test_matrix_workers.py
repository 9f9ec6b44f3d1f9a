# SPDX-License-Identifier: Apache-2.0
"""A run of the matrix that is stopped leaves no process behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[3]

ENGINE = "import os, time; os.setsid(); print(os.getpid(), flush=True); time.sleep(600)"
"""Like an engine: in a session of its own."""
WORKER = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {ENGINE!r}])"
"""Like a process that runs cells: it waits for an engine."""

RUN = f"""
import sys
from benchmarks.matrix import __main__ as program, store
from benchmarks.matrix.progress import Batch

Batch.command = lambda batch: [sys.executable, "-c", {WORKER!r}]
program.make_models = lambda *_: None
store.find = lambda *_: None
sys.exit(program.main(["--only", "dense/dense", "--side", "ours", "--jobs", "1"]))
"""


def waited_for(told: Callable[[], bool], seconds: float = 60.0) -> bool:
    """Whether ``told`` becomes true."""
    end = time.monotonic() + seconds
    while not (done := told()) and time.monotonic() < end:
        time.sleep(0.05)
    return done


def is_gone(process: int) -> bool:
    """Whether a process has ended, though nobody may have asked for its status yet."""
    try:
        return psutil.Process(process).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def leads_a_session(process: int) -> bool:
    try:
        return os.getsid(process) == process
    except ProcessLookupError:  # it ended while it was looked at
        return False


def test_a_run_that_is_stopped_ends_its_engines() -> None:
    run = subprocess.Popen(
        [sys.executable, "-c", RUN], cwd=ROOT, stderr=subprocess.PIPE, text=True, env=os.environ
    )
    assert run.stderr is not None
    started: list[psutil.Process] = []

    def engine_runs() -> bool:
        children = psutil.Process(run.pid).children(recursive=True)
        started[:] = [one for one in children if leads_a_session(one.pid)]
        return bool(started)

    assert waited_for(engine_runs)
    run.send_signal(signal.SIGTERM)
    assert run.wait(timeout=60) == 130
    assert "stopped; the next run goes on where this one was" in run.stderr.read()
    run.stderr.close()
    assert waited_for(lambda: all(is_gone(one.pid) for one in started))
