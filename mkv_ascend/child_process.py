# SPDX-License-Identifier: Apache-2.0
"""Processes that commands start. They import nothing from the current folder.

Commands are run from the folders of downloaded models. Python puts the current folder in front of
all others for ``-m`` and ``-c``: a ``json.py`` that lies there would be run. From Python 3.11 on
``PYTHONSAFEPATH`` keeps it out; 3.10 has no such variable.
"""

from __future__ import annotations

import multiprocessing
import os
import site
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

__all__ = ["in_a_copy", "module_command", "run_module", "safe_environment"]

Result = TypeVar("Result")

START = """\
import sys
if sys.path[:1] == [""]:
    del sys.path[0]
import runpy
runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
"""
"""As ``python -m`` with the module's name behind it, but without the current folder."""


def module_command(module: str) -> tuple[str, ...]:
    """What runs a module as a program in place of ``python -m``; its arguments come behind it."""
    return (sys.executable, "-c", START, module)


def safe_environment(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Variables of a process that finds this package, and nothing in the current folder.

    Args:
        environment: what it would be else; None: this process's.

    An empty entry of ``PYTHONPATH`` means the current folder, and is left out.
    """
    found = dict(os.environ if environment is None else environment)
    folders = [os.path.abspath(one) for one in found.get("PYTHONPATH", "").split(os.pathsep) if one]
    own = str(Path(__file__).resolve().parents[1])
    if own not in (*folders, *site.getsitepackages(), site.getusersitepackages()):
        # A source tree that was not installed is found by the command that runs, and not by others.
        folders.append(own)
    found.pop("PYTHONPATH", None)
    if folders:
        found["PYTHONPATH"] = os.pathsep.join(folders)
    return {**found, "PYTHONSAFEPATH": "1"}


def run_module(
    module: str, question: str, environment: Mapping[str, str], seconds: float
) -> subprocess.CompletedProcess[str]:
    """Run a module that reads a question from standard input; what it printed.

    It has an empty folder of its own, so that its children are as safe with Python 3.10: paths in
    the question are absolute.

    Raises:
        subprocess.TimeoutExpired: it took longer than ``seconds``, and was ended.
    """
    with tempfile.TemporaryDirectory(prefix="mkv_ascend_") as folder:
        return subprocess.run(
            module_command(module),
            input=question,
            env=safe_environment(environment),
            cwd=folder,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=seconds,
        )


def in_a_copy(work: Callable[[], Result]) -> Result:
    """What ``work`` returns in a copy of this process, whose modules stay as they are.

    Raises:
        EOFError: it raised, with a traceback on standard error, or the copy was ended.
    """
    context = multiprocessing.get_context("fork")
    reader, writer = context.Pipe(duplex=False)

    def tell() -> None:
        writer.send(work())
        # Where experts move, vllm-ascend's runner starts processes, which would outlive the copy.
        for started in multiprocessing.active_children():
            started.kill()  # One that has just begun, or that has a handler, can miss SIGTERM.
        os._exit(0)  # Nothing that the copy has begun is waited for.

    copy = context.Process(target=tell)
    copy.start()
    writer.close()
    try:
        result: Result = reader.recv()
        return result
    finally:
        copy.join()
