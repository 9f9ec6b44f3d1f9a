# SPDX-License-Identifier: Apache-2.0
"""Questions to vLLM, asked in a process of their own: on the emulated NPU if there is no real one.

vllm-ascend cannot be imported without torch_npu, and its patches cannot be taken back. The process
reads a question from standard input as JSON and prints its answer on a line that begins with
``MARK``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from mkv_ascend.adapters.installed import adapter
from mkv_ascend.adapters.questions import MARK
from mkv_ascend.adapters.refusal import StartUpRefused
from mkv_ascend.ascend_host import find_ascend
from mkv_ascend.child_process import run_module
from mkv_ascend.commands import emulator
from mkv_ascend.commands.runner_option import VARIABLE

SECONDS = 300


class ProcessError(RuntimeError):
    """vLLM could not be asked; the message says why."""


def ask_host(module: str, question: Mapping[str, Any], environment: Mapping[str, str]) -> Any:
    """What this module of the adapter for the installed versions answers; see ``ask``."""
    try:
        package = adapter().PACKAGE
    except StartUpRefused as refusal:
        raise ProcessError(str(refusal)) from None
    return ask(f"{package}.{module}", question, environment)


def ask(module: str, question: Mapping[str, Any], environment: Mapping[str, str]) -> Any:
    """What the module answers as a program. ``environment``: variables of the process besides ours.

    Raises ProcessError when the process cannot run or ends without an answer.
    """
    try:
        done = run_module(module, json.dumps(question), _environment(environment), SECONDS)
    except subprocess.TimeoutExpired as error:
        raise ProcessError(f"vLLM gave no answer within {SECONDS} s") from error
    answers = [line for line in done.stdout.splitlines() if line.startswith(MARK)]
    if done.returncode or not answers:
        words = done.stderr.strip().splitlines()[-1:] or ["nothing"]
        raise ProcessError(
            f"the process that asks vLLM ended with status {done.returncode}; it said: {words[0]}"
        )
    return json.loads(answers[-1][len(MARK) :])


def _environment(more: Mapping[str, str]) -> dict[str, str]:
    base = {**os.environ, "VLLM_LOGGING_LEVEL": "ERROR", **more}
    if find_ascend():
        return base
    if not emulator.is_installed():
        raise ProcessError(f"there is no Ascend NPU here, and {emulator.HOW_TO_INSTALL}")
    if base.get(VARIABLE) == "1":
        from emulated_npu import variables

        # vLLM makes no configuration of model runner V2 without Triton, which NPUs have.
        base = {variables.TRITON.name: "1", **base}
    try:
        return emulator.environment_for((sys.executable,), base)
    except emulator.EmulatorError as error:
        raise ProcessError(f"without an Ascend NPU it needs the emulated one: {error}") from error
