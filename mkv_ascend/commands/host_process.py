# SPDX-License-Identifier: Apache-2.0
"""Questions to vLLM, asked in a process of their own: on the emulated NPU if there is no real one.

vllm-ascend cannot be imported without torch_npu, and its patches cannot be taken back. The process
reads a question from standard input as JSON and prints its answer on a line that begins with
``MARK``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import Any

from mkv_ascend.adapters.installed import adapter, runners
from mkv_ascend.adapters.questions import MARK
from mkv_ascend.adapters.refusal import StartUpRefused
from mkv_ascend.child_process import run_module
from mkv_ascend.commands import emulate
from mkv_ascend.commands.command_words import Command, CommandError
from mkv_ascend.host_versions import find_ascend
from mkv_ascend.rules.facts import EMULATED

SECONDS = 600
PATIENCE_SECONDS = 2.0
MEMORY = 64 << 30
"""Bytes: what an Atlas A2, and a die of an A3, has at most."""
NO_NPU = "there is no NPU here; judged for an Ascend {generation} of at most 64 GiB"
"""What the answer says; the generation is the one that vllm-ascend was built for."""
RUNNER = "VLLM_USE_V2_MODEL_RUNNER"
"""vLLM's variable that chooses model runner V2."""


THIS: Mapping[str, Any] = {
    "count": None,
    "count_is_known": False,
    "memory_bytes": None,
    "generation": None,
    "source": None,
}
"""Judged for the devices of the process that judges."""


class ProcessError(RuntimeError):
    """vLLM could not be asked; the message says why."""


def ask(question: Mapping[str, Any], environment: Mapping[str, str], name: str) -> Any:
    """What the installed host's adapter answers (``judge.py``).

    Args:
        environment: variables of the process besides ours.
        name: of our command, which says after two seconds that it waits.

    Raises ProcessError when the process cannot run or ends without an answer.
    """
    try:
        module = f"{adapter().PACKAGE}.judge"
    except StartUpRefused as refusal:
        raise ProcessError(str(refusal).removeprefix("mkv_ascend: ")) from None
    timer = threading.Timer(PATIENCE_SECONDS, _say_that_it_takes, [name])
    timer.start()
    try:
        done = run_module(module, json.dumps(question), _environment(environment), SECONDS)
    except subprocess.TimeoutExpired as error:
        raise ProcessError(f"vLLM gave no answer within {SECONDS} s") from error
    finally:
        timer.cancel()
    answers = [line for line in done.stdout.splitlines() if line.startswith(MARK)]
    if done.returncode or not answers:
        words = done.stderr.strip().splitlines()[-1:] or ["nothing"]
        raise ProcessError(
            f"the process that asks vLLM ended with status {done.returncode}; it said: {words[0]}"
        )
    return json.loads(answers[-1][len(MARK) :])


def runner_variables(runner: str | None) -> dict[str, str]:
    """What chooses vLLM's model runner, "v1" or "v2"; nothing where none is asked for.

    Raises ProcessError for one that the installed host does not have.
    """
    if runner is None:
        return {}
    if runner not in runners():
        raise ProcessError(
            f"--runner {runner}: the installed vllm-ascend has {' and '.join(runners())}. Leave "
            "the option out, or take vllm-ascend 0.30.0rc2 (in a clone HOST=0.30 of make)"
        )
    return {RUNNER: str(int(runner == "v2"))}


def _say_that_it_takes(name: str) -> None:
    if sys.__stderr__ is not None and sys.__stderr__.isatty():
        sys.__stderr__.write(
            f"mkv-ascend {name}: vLLM makes the configuration, and builds the models without "
            "memory; this takes about 20 s\n"
        )


def _environment(more: Mapping[str, str]) -> dict[str, str]:
    base = {"HF_HUB_OFFLINE": "1", **os.environ, "VLLM_LOGGING_LEVEL": "ERROR", **more}
    if find_ascend():
        return base
    if not emulate.is_installed():
        raise ProcessError(f"there is no Ascend NPU here, and {emulate.HOW_TO_INSTALL}")
    if base.get(RUNNER, "").strip() not in ("", "0"):
        from emulated_npu import variables

        # vLLM makes no configuration of model runner V2 without Triton, which NPUs have.
        base = {variables.TRITON.name: "1", **base}
    try:
        return emulate.environment_for((sys.executable,), base)
    except emulate.EmulatorError as error:
        raise ProcessError(f"without an Ascend NPU it needs the emulated one: {error}") from error


def place(arguments: argparse.Namespace, command: Command) -> tuple[dict[str, str], dict[str, Any]]:
    """Variables of the process that judges, and the devices that it judges for.

    Args:
        arguments: ``devices`` and ``device_memory``, None where they are not given.

    Raises:
        CommandError: a variable of the emulated NPU is wrong.
    """
    variables = dict(command.variables)
    device: dict[str, Any] = {
        **THIS,
        "count": arguments.devices,
        "count_is_known": arguments.devices is not None,
        "memory_bytes": arguments.device_memory,
    }
    if arguments.devices or arguments.device_memory:
        device["source"] = "--devices or --device-memory are given"
    if command.emulated or _is_emulated_process():
        return {**variables, **_emulated(command, device)}, device
    if find_ascend():
        return variables, device
    device["count_is_known"] = True
    device["memory_bytes"] = device["memory_bytes"] or MEMORY
    device["source"] = device["source"] or NO_NPU
    if emulate.is_installed():
        from emulated_npu import variables as emulated

        variables |= {emulated.STRICT.name: "1", emulated.FA3.name: "0"}
        variables |= _roomy(device["memory_bytes"])
    return variables, device


def _is_emulated_process() -> bool:
    if not emulate.is_installed():
        return False
    from emulated_npu.host_check import SITE_FOLDER

    return str(SITE_FOLDER) in os.environ.get("PYTHONPATH", "").split(os.pathsep)


def _emulated(command: Command, device: dict[str, Any]) -> dict[str, str]:
    """Variables of the judging process, which has as many devices as there are ranks."""
    from emulated_npu.settings import EmulatorSettings
    from emulated_npu.variables import VariableError

    try:
        settings = EmulatorSettings.from_environment({**os.environ, **command.emulated})
    except VariableError as error:
        raise CommandError(str(error)) from error
    device |= {
        "count": device["count"] or settings.devices,
        "count_is_known": True,
        "memory_bytes": device["memory_bytes"] or settings.memory_bytes,
        "source": EMULATED if device["source"] is None else f"{EMULATED}; {device['source']}",
    }
    return {**command.emulated, **_roomy(device["memory_bytes"])}


def _roomy(memory: int) -> dict[str, str]:
    from emulated_npu import variables as emulated

    return {
        emulated.DEVICES.name: str(emulated.MOST_DEVICES),
        emulated.MEMORY.name: emulated.MEMORY.format(memory),
    }
