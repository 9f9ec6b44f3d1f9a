# SPDX-License-Identifier: Apache-2.0
"""Which host a benchmark runs on: vllm-ascend of this environment, or of one that set-up made.

And on which of vLLM's model runners.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import NoReturn

from benchmarks.progress import say
from mkv_ascend.adapters.installed import adapter

ROOT = Path(__file__).resolve().parents[1]
RUNNERS: dict[str, dict[str, str]] = {
    "v1": {},
    # Where vLLM finds no Triton, vllm-ascend leaves out its patches of that runner.
    "v2": {"VLLM_USE_V2_MODEL_RUNNER": "1", "EMULATED_NPU_TRITON": "1"},
}
"""Model runner -> variables of an engine that has it."""


def installed() -> str:
    """The version of vllm-ascend in this environment."""
    return metadata.version("vllm-ascend")


def interpreter_with(version: str) -> str | None:
    """Python of the environment with this vllm-ascend, this one or one that set-up made.

    Args:
        version: whole, or how it begins: ``0.30`` is 0.30.0rc2 where no other 0.30 is installed.

    Returns:
        Its path; None if there is no such environment.
    """
    if _is(version, installed()):
        return sys.executable
    for found in sorted(ROOT.glob(".venv*/lib/python*/site-packages/vllm_ascend-*.dist-info")):
        if _is(version, found.name.removeprefix("vllm_ascend-").removesuffix(".dist-info")):
            return str(found.parents[3] / "bin" / "python")
    return None


def _is(version: str, whole: str) -> bool:
    return f"{whole}.".startswith(f"{version}.")


def run_emulated(module: str) -> NoReturn:
    """Run a program again on the emulated NPU, with float32 as tiny models and references have it.

    Args:
        module: its name, such as ``benchmarks.acceptance``; it is given this process's arguments.
    """
    command = [sys.executable, "-m", "mkv_ascend", "emulate", "--strict", "--float32-compute", "--"]
    command += [sys.executable, "-m", module, *sys.argv[1:]]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    sys.exit(subprocess.run(command, env=environment, check=False).returncode)


def add_option(parser: argparse.ArgumentParser) -> None:
    """Give ``parser`` the option ``--host``."""
    parser.add_argument(
        "--host",
        metavar="VERSION",
        help="run in the environment with this vllm-ascend, such as 0.30 (default: this one)",
    )


def add_runner_option(parser: argparse.ArgumentParser) -> None:
    """Give ``parser`` the option ``--runner``."""
    parser.add_argument(
        "--runner",
        choices=sorted(RUNNERS),
        default="v1",
        help="vLLM's model runner; v2 with vllm-ascend 0.30.0rc2 (default: v1)",
    )


def require_runner(runner: str) -> None:
    """Raise LookupError, with what the host has, if it has no such model runner."""
    known = adapter().RUNNERS
    if runner not in known:
        raise LookupError(
            f"vllm-ascend {installed()} has no model runner {runner}, only {', '.join(known)}; "
            "--host 0.30 has v2"
        )


def go_on_with(host: str | None, program: str, arguments: Sequence[str]) -> None:
    """Replace this process by the same program in the environment of ``host``, if that is another.

    Args:
        host: of ``--host``.
        program: the module that runs.
        arguments: of the program.

    Raises:
        LookupError: there is no such environment; the message says how it is made.
    """
    if host is None:
        return
    python = interpreter_with(host)
    if python is None:
        raise LookupError(
            f"--host {host}: no environment here has a vllm-ascend of this version, this one has "
            f"{installed()}; `make setup HOST={host}` makes one, for the hosts in tools/hosts.py"
        )
    if python != sys.executable:
        say(f"host {host}: {python}")
        os.execv(python, [python, "-m", program, *arguments])
