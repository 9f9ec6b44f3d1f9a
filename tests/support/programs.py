# SPDX-License-Identifier: Apache-2.0
"""Run a program in a process of its own, quickly where that is possible.

On the emulated NPU the process is forked from one which has imported vLLM already
(``program_starter``), one for each environment; else it is a new Python.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.emulation import ON_EMULATOR
from tests.support.program_starter import ProgramStarter

REPOSITORY = str(Path(__file__).resolve().parents[2])

HANG_SECONDS = 900
"""Within which every program of a test has ended, on a crowded machine too: a longer one hangs."""


@dataclass(frozen=True)
class Finished:
    """How a program ended; ``status`` is None when it was ended because its time was over."""

    status: int | None
    output: str
    errors: str


def run_program(
    program: str | Path,
    arguments: Sequence[str] = (),
    variables: Mapping[str, str] | None = None,
    timeout: float = HANG_SECONDS,
) -> Finished:
    """Run a module (its name) or a file (its path, which ends with ``.py``) as a program.

    Args:
        program: what to run.
        arguments: its own.
        variables: set for it; with any the program imports everything itself.
        timeout: seconds after which it is ended.
    """
    with tempfile.TemporaryDirectory() as folder:
        output, errors = Path(folder, "output.txt"), Path(folder, "errors.txt")
        status = run_printing_to(output, errors, str(program), arguments, variables or {}, timeout)
        return Finished(
            status, output.read_text(errors="replace"), errors.read_text(errors="replace")
        )


def answer_of(
    probe: Callable[[Any], Any], request: Any, variables: Mapping[str, str] | None = None
) -> Any:
    """What ``probe(request)`` gives in a process of its own (``probe.py``); both as JSON.

    Workers of its engine may print more behind it, which begins otherwise.

    ``variables``: of its environment, as ``run_program`` takes them.

    Raises:
        AssertionError: it failed; with the end of what it printed.
    """
    name = f"{probe.__module__}:{probe.__name__}"
    done = run_program("tests.support.probe", [name, json.dumps(request)], variables)
    if done.status != 0:
        raise AssertionError(f"{name} ended with {done.status}\n{done.errors[-4000:]}")
    lines = done.output.strip().splitlines()
    return json.loads(next((x for x in reversed(lines) if x.startswith(("{", "["))), lines[-1]))


def run_printing_to(
    output: Path,
    errors: Path,
    program: str,
    arguments: Sequence[str],
    variables: Mapping[str, str],
    timeout: float,
) -> int | None:
    """As ``run_program``, printing to files, which may be the same; the exit status."""
    environment = _environment(variables)
    starter = _starter_for(environment)
    if starter is not None:
        return starter.run(program, arguments, output, errors, timeout)
    command = [sys.executable] if program.endswith(".py") else [sys.executable, "-m"]
    with output.open("a") as out, errors.open("a") as err:
        try:
            return subprocess.run(
                [*command, program, *arguments],
                env=environment,
                timeout=timeout,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                check=False,
            ).returncode
        except subprocess.TimeoutExpired:
            return None


def with_repository(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment in which ``tests`` and ``benchmarks`` can be imported, wherever it runs."""
    folders = [REPOSITORY, *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
    return {**environment, "PYTHONPATH": os.pathsep.join(dict.fromkeys(folders))}


OF_ENGINES = ("PYTORCH_NPU_ALLOC_CONF",)
"""What vllm-ascend sets where it has read the options of an engine.

A process of tests reads options of many, and one that sleeps refuses what others are given.
"""

_BEFORE_ANY_ENGINE = {name: os.environ[name] for name in OF_ENGINES if name in os.environ}


def _environment(variables: Mapping[str, str]) -> dict[str, str]:
    left_out = {"PYTEST_CURRENT_TEST", *OF_ENGINES}
    inherited = {name: value for name, value in os.environ.items() if name not in left_out}
    return {
        **with_repository(inherited | _BEFORE_ANY_ENGINE),
        # Keeps the scheduler in reach of the recorder; workers of TP 2 are still processes.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "OMP_NUM_THREADS": "1",
        # numba, which vLLM's look-up of drafts uses, would set torch's threads to the cores.
        "NUMBA_NUM_THREADS": "1",
        **variables,
    }


MOST_STARTERS = 3
"""Processes to fork that a test process keeps, each of which has imported an engine."""

_starters: OrderedDict[frozenset[tuple[str, str]], ProgramStarter | None] = OrderedDict()
"""By environment, the one asked for last at the end; None: asked for once, and without one."""


def _starter() -> ProgramStarter:
    """The one of programs without variables of their own."""
    starter = _starter_for(_environment({}))
    assert starter is not None
    return starter


def _starter_for(environment: Mapping[str, str]) -> ProgramStarter | None:
    """The process to fork; None where the program must import everything itself.

    Variables may be read while modules are imported, so there is one for each environment: for that
    without variables at once, for others when they are asked for again.
    """
    if not ON_EMULATOR:
        return None
    key = frozenset(environment.items())
    known = key in _starters
    starter = _starters.pop(key, None)
    if starter is None and (known or environment == _environment({})):
        starter = ProgramStarter(environment)
    _starters[key] = starter
    kept = [other for other, process in _starters.items() if process is not None]
    for other in kept[:-MOST_STARTERS]:
        process = _starters.pop(other)
        assert process is not None
        process.stop()
    return starter
