# SPDX-License-Identifier: Apache-2.0
"""Engines that start from one process which has imported vLLM already.

Importing torch and vLLM takes most of the time in which a small engine runs. ``EngineStarter`` does
it once, in a process of its own, and forks that process for each engine: each one still has a
process to itself, with nothing of the engines before it.

Only for the emulated NPU: what a real device's runtime would make of a fork is not known.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

IMPORTED_BEFORE = ("torch", "transformers", "vllm", "vllm.entrypoints.llm", "vllm.platforms")
"""What every engine imports first, in that order."""


class EngineStarter:
    """The process that forks, for engines with ``environment``."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.environment = dict(environment)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "mkv_ascend.testing.engine_starter"],
            env=self.environment,
            # A line that was read ahead would be waited for in vain.
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        atexit.register(self.stop)

    def run(self, request: Path, answer: Path, log: Path, timeout: float) -> bool:
        """Run ``mkv_ascend.testing.engine``; False: it was ended after ``timeout`` seconds.

        Args:
            request, answer: files of the scenario and of its result.
            log: file for everything that the engine prints.
        """
        assert self._process.stdin is not None
        order = {"request": str(request), "answer": str(answer), "log": str(log)}
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        engine = self._told()["pid"]
        if self._speaks_within(timeout):
            self._told()
            return True
        # Its workers are in its session and so in its group.
        os.killpg(engine, signal.SIGKILL)
        self._told()
        return False

    def stop(self) -> None:
        """End the process, which ends by itself when nothing can be asked of it any more."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=10)

    def _told(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the process that starts engines ended; its error is printed above")
        told: dict[str, Any] = json.loads(line)
        return told

    def _speaks_within(self, timeout: float) -> bool:
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            return bool(selector.select(timeout))


def main() -> None:
    """Fork for each order on standard input, one after another."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for name in IMPORTED_BEFORE:
        importlib.import_module(name)
    if threading.active_count() > 1:
        raise RuntimeError(f"a fork would lose the threads {threading.enumerate()[1:]}")
    for line in sys.stdin:
        order = json.loads(line)
        engine = os.fork()
        if engine == 0:
            answers.close()
            _become_engine(order)
        print(json.dumps({"pid": engine}), file=answers, flush=True)
        _, status = os.waitpid(engine, 0)
        print(json.dumps({"status": status}), file=answers, flush=True)


def _become_engine(order: Mapping[str, str]) -> NoReturn:
    os.setsid()
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    status = 0
    try:
        importlib.import_module("mkv_ascend.testing.engine").main(order["request"], order["answer"])
    except BaseException:
        traceback.print_exc()
        status = 1
    finally:
        # As at the end of any process; the parent's own end is not this one's.
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    main()
