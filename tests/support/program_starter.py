# SPDX-License-Identifier: Apache-2.0
"""Programs that start from one process which has imported vLLM already.

Importing torch, vLLM and vllm-ascend takes most of the time in which a small engine runs.
``ProgramStarter`` does it once, in a process of its own, and forks that process for each program:
each one still has a process to itself, with nothing of the programs before it.

Only for the emulated NPU: what a real device's runtime would make of a fork is not known.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from mkv_ascend.adapters.contract import WORKER

IMPORTED_FIRST = ("torch", "transformers", "vllm", "vllm.entrypoints.llm", "vllm.platforms")
"""What every engine imports first, in that order."""


class ProgramStarter:
    """The process that forks, for programs with ``environment``."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.environment = dict(environment)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.program_starter"],
            env=self.environment,
            # A line that was read ahead would be waited for in vain.
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        atexit.register(self.stop)

    def run(
        self,
        program: str,
        arguments: Sequence[str],
        output: Path,
        errors: Path,
        timeout: float,
        given: Path = Path(os.devnull),
    ) -> int | None:
        """Run a program; its exit status, or None if it was ended after ``timeout`` seconds.

        Args:
            program: name of a module, or path of a file that ends with ``.py``.
            arguments: the program's own.
            output, errors: files for what it prints; may be the same one.
            timeout: seconds.
            given: what it reads from standard input.
        """
        assert self._process.stdin is not None
        order = {
            "program": program,
            "arguments": list(arguments),
            "output": str(output),
            "errors": str(errors),
            "given": str(given),
        }
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        started = self._told()["pid"]
        if self._speaks_within(timeout):
            status: int = self._told()["status"]
            return status
        # Its workers are in its session and so in its group.
        os.killpg(started, signal.SIGKILL)
        self._told()
        return None

    def stop(self) -> None:
        """End the process, which ends by itself when nothing can be asked of it any more."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=10)

    def _told(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the process that starts programs ended; its error is printed above")
        told: dict[str, Any] = json.loads(line)
        return told

    def _speaks_within(self, timeout: float) -> bool:
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            return bool(selector.select(timeout))


def import_what_engines_import() -> None:
    """In the order of an engine: vLLM, the general plugins with their patches, then the worker."""
    for name in IMPORTED_FIRST:
        importlib.import_module(name)
    from vllm.platforms import current_platform
    from vllm.plugins import load_general_plugins

    load_general_plugins()
    is_ours = type(current_platform).__module__.startswith("mkv_ascend.")
    worker = WORKER if is_ours else "vllm_ascend.worker.worker.NPUWorker"
    importlib.import_module(worker.rpartition(".")[0])


def main() -> None:
    """Fork for each order on standard input, one after another."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    import_what_engines_import()
    if threading.active_count() > 1:
        raise RuntimeError(f"a fork would lose the threads {threading.enumerate()[1:]}")
    # Engines collect garbage eight times before they run. What was imported here is none.
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        order = json.loads(line)
        started = os.fork()
        if started == 0:
            answers.close()
            _become(order)
        print(json.dumps({"pid": started}), file=answers, flush=True)
        _, status = os.waitpid(started, 0)
        status = os.waitstatus_to_exitcode(status)
        print(json.dumps({"status": status}), file=answers, flush=True)


def _become(order: Mapping[str, Any]) -> NoReturn:
    os.setsid()
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND
    os.dup2(os.open(order["given"], os.O_RDONLY), 0)
    os.dup2(os.open(order["output"], flags), 1)
    os.dup2(os.open(order["errors"], flags), 2)
    program = order["program"]
    sys.argv = [program, *order["arguments"]]
    status: Any = 0
    try:
        if program.endswith(".py"):
            runpy.run_path(program, run_name="__main__")
        else:
            runpy.run_module(program, run_name="__main__", alter_sys=True)
    except SystemExit as leaving:
        status = leaving.code
    except BaseException:
        traceback.print_exc()
        status = 1
    finally:
        # As at the end of any process; the parent's own end is not this one's.
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(_exit_status(status))


def _exit_status(code: Any) -> int:
    """As Python has it: None is 0, and anything but a number is printed and is 1."""
    if isinstance(code, int):
        return code
    if code is None:
        return 0
    print(code, file=sys.stderr, flush=True)
    return 1


if __name__ == "__main__":
    main()
