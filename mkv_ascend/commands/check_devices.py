# SPDX-License-Identifier: Apache-2.0
"""The devices that a command would run on, known without torch, vLLM or a driver."""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from mkv_ascend.ascend_host import DEVICE_FOLDER
from mkv_ascend.attention import catalog
from mkv_ascend.attention.entry import DeviceGeneration
from mkv_ascend.checks.facts import EMULATED, DeviceFacts
from mkv_ascend.commands import emulator
from mkv_ascend.commands.serve_arguments import CommandError

MEMORY = 64 << 30
"""Bytes: what an Atlas A2, and a die of an A3, has at most."""


def split_emulate(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """A command behind ``mkv-ascend emulate``: the variables that it would set, and the command.

    Variables are those of the emulated NPU; none without ``emulate``. Raises CommandError, and
    SystemExit for an option, as the command itself would.
    """
    names = [Path(word).name for word in words[:2]]
    if names != ["mkv-ascend", "emulate"]:
        return {}, list(words)
    if not emulator.is_installed():
        raise CommandError(emulator.HOW_TO_INSTALL)
    from emulated_npu import command
    from emulated_npu.launch import settings_environment
    from emulated_npu.variables import VariableError

    parser = argparse.ArgumentParser(prog="mkv-ascend emulate")
    command.add_arguments(parser)
    given = parser.parse_args(list(words[2:]))
    try:
        settings = command.chosen_settings(given)
    except VariableError as error:
        raise CommandError(str(error)) from error
    return settings_environment(settings), list(command.without_separator(given.command))


def devices_of(
    arguments: argparse.Namespace, emulated: Mapping[str, str], device_folder: Path = DEVICE_FOLDER
) -> DeviceFacts:
    """What ``--devices`` and ``--memory`` say, else what is found.

    Args:
        emulated: variables of an emulated process, empty where the command does not ask for one.
    """
    if emulated or _is_emulated_process():
        found = _emulated({**os.environ, **emulated})
    else:
        found = _real(device_folder)
    given = arguments.devices or arguments.memory
    return replace(
        found,
        count=arguments.devices or found.count,
        memory_bytes=arguments.memory or found.memory_bytes,
        source=f"{found.source}; --devices or --memory are given" if given else found.source,
        modules=found.modules | catalog.installed_modules(),
        batch_invariant=_batch_invariant(),
    )


def _is_emulated_process() -> bool:
    if not emulator.is_installed():
        return False
    from emulated_npu.host_check import SITE_FOLDER

    return str(SITE_FOLDER) in os.environ.get("PYTHONPATH", "").split(os.pathsep)


def _emulated(environment: Mapping[str, str]) -> DeviceFacts:
    from emulated_npu import variables
    from emulated_npu.settings import EmulatorSettings

    try:
        settings = EmulatorSettings.from_environment(environment)
        has_fa3 = variables.FA3.get(environment)
    except variables.VariableError as error:
        raise CommandError(str(error)) from error
    relaxed = settings.float32_compute or not settings.strict
    return DeviceFacts(
        settings.devices,
        settings.memory_bytes,
        DeviceGeneration.A2,
        EMULATED,
        frozenset({"float32"}) if relaxed else frozenset(),
        frozenset({"flash_attn_npu_v3"}) if has_fa3 else frozenset(),
    )


def _real(device_folder: Path) -> DeviceFacts:
    nodes = len(list(device_folder.glob("davinci[0-9]*")))
    visible = os.environ.get("ASCEND_RT_VISIBLE_DEVICES", "")
    generation = _generation()
    memory = MEMORY if generation in (DeviceGeneration.A2, DeviceGeneration.A3) else None
    if not nodes:
        source = f"there is no NPU here; judged for an Ascend {generation} of at most 64 GiB"
        return DeviceFacts(None, memory, generation, source)
    listed = [index for index in visible.split(",") if index.strip().isdecimal()]
    count = min(nodes, len(listed)) if listed else nodes
    source = f"NPUs of this machine, Ascend {generation} of at most 64 GiB"
    return DeviceFacts(count, memory, generation, source)


def _batch_invariant() -> bool:
    return os.environ.get("VLLM_BATCH_INVARIANT", "0").strip().lower() in ("1", "true")


def _generation() -> DeviceGeneration:
    """What the installed vllm-ascend was built for, an A2 where that is not told."""
    specification = importlib.util.find_spec("vllm_ascend")
    for folder in (specification.submodule_search_locations or ()) if specification else ():
        file = Path(folder) / "_build_info.py"
        text = file.read_text(encoding="utf-8") if file.is_file() else ""
        found = re.search(r"__device_type__\s*=\s*['\"]_?(\w+)['\"]", text)
        if found and found.group(1) in {generation.value for generation in DeviceGeneration}:
            return DeviceGeneration(found.group(1))
    return DeviceGeneration.A2
