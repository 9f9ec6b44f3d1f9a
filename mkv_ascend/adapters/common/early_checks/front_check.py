# SPDX-License-Identifier: Apache-2.0
"""``vllm serve`` refuses what cannot be served before anything is started, in one message.

vLLM's command asks the platform to prepare before it reads its arguments; there
``EngineArgs.create_engine_config`` is wrapped. The checks are those of ``mkv-ascend check``.
"""

from __future__ import annotations

import os
from importlib.metadata import version
from typing import Any, NoReturn

from mkv_ascend.adapters.installed import adapter
from mkv_ascend.adapters.logging import get_logger
from mkv_ascend.adapters.patching import patch
from mkv_ascend.adapters.refusal import StartUpRefused, is_vllm_command, refuse
from mkv_ascend.attention import catalog
from mkv_ascend.attention.entry import DeviceGeneration
from mkv_ascend.checks.engine_arguments import asked_of
from mkv_ascend.checks.facts import EMULATED, DeviceFacts

logger = get_logger(__name__)

REFUSALS = (ValueError, AssertionError, OSError, RuntimeError, ImportError)
"""What vLLM and vllm-ascend raise where they do not serve what is asked for: vllm-ascend's options
for some models are refused by a RuntimeError (NotImplementedError is one), and what is not
installed by an ImportError. Others are faults, whose traceback is of use."""
MOST_MEMORY = {DeviceGeneration.A2: 64 << 30, DeviceGeneration.A3: 64 << 30}
"""Bytes of a device's memory that no smaller request can exceed: asking would start the driver."""


@patch(
    name="refusals before the start",
    target="vllm.engine.arg_utils:EngineArgs.create_engine_config",
    why="What cannot be served is refused in the process that the user started, by the checks of "
    "mkv-ascend check; the platform is asked only when vLLM has made its configuration, and what "
    "that raises is shown behind a traceback.",
    until="vLLM hands the arguments to the platform, and prints a refusal alone",
    test="tests/emulated/platform/test_front_check.py",
)
def check_first(original: Any, arguments: Any, *args: Any, **kwargs: Any) -> Any:
    """``EngineArgs.create_engine_config`` behind our checks, in vLLM's own command."""
    if not is_vllm_command():
        return original(arguments, *args, **kwargs)
    was_checked = check(arguments)
    try:
        made = original(arguments, *args, **kwargs)
    except REFUSALS as error:
        _say_what_vllm_says(error)
    if not was_checked:
        # By now vLLM has fetched what the models' repositories say.
        check(arguments)
    return made


def check(arguments: Any) -> bool:
    """Refuse what cannot be served; False where a model's configuration is not here yet.

    Nothing is said here of a configuration that only vLLM reads.

    Args:
        arguments: vLLM's ``EngineArgs``.

    Raises:
        StartUpRefused: in vLLM's command, with every refusal.
    """
    from mkv_ascend.checks.about_runner import runner_of
    from mkv_ascend.checks.judging import judge
    from mkv_ascend.checks.model_folders import names_without_folder, read_by_vllm_alone
    from mkv_ascend.checks.refusal import RefusedError
    from mkv_ascend.checks.variables import with_variables

    engine = asked_of(arguments)
    if others := read_by_vllm_alone(engine):
        logger.info("%s: judged when models are built, as only vLLM reads it", ", ".join(others))
        return True
    absent = names_without_folder(engine)
    if absent:
        logger.info("%s: judged when vLLM has fetched the configuration", ", ".join(absent))
        return False
    host = adapter()
    runner = runner_of(os.environ, host.RUNNERS)
    try:
        asked = with_variables(engine, os.environ, host.RULES)
        judge(asked, devices(), host.RULES, runner, loads_weights=True)
    except RefusedError as error:
        refuse(error)
    return True


def devices() -> DeviceFacts:
    """The devices of this process, without starting a driver's context."""
    import torch_npu
    from vllm import envs as vllm_envs
    from vllm_ascend.utils import get_ascend_device_type

    generation = DeviceGeneration(get_ascend_device_type().name.lstrip("_"))
    emulated = hasattr(torch_npu, "emulated_extra_dtypes")
    return DeviceFacts(
        count=torch_npu.npu.device_count(),
        memory_bytes=getattr(torch_npu, "emulated_memory_bytes", MOST_MEMORY.get(generation)),
        generation=generation,
        source=EMULATED if emulated else "visible NPUs",
        extra_dtypes=getattr(torch_npu, "emulated_extra_dtypes", frozenset()),
        modules=catalog.installed_modules(),
        batch_invariant=bool(vllm_envs.VLLM_BATCH_INVARIANT),
    )


def _say_what_vllm_says(error: Exception) -> NoReturn:
    """End with vLLM's own words; with VLLM_LOGGING_LEVEL=DEBUG the error is raised as it is."""
    if os.environ.get("VLLM_LOGGING_LEVEL", "").upper() == "DEBUG" or not str(error):
        raise error
    # pydantic's text repeats all of its input; each of its errors has a message.
    listed = error.errors() if hasattr(error, "errors") else ()
    words = "; ".join(str(one["msg"]).removeprefix("Value error, ") for one in listed)
    # 300 names of classes.
    words, _, _ = (words or str(error)).partition(" Supported architectures:")
    raise StartUpRefused(
        f"vLLM {version('vllm')} or vllm-ascend {version('vllm-ascend')} refuses this "
        f"configuration: {words.rstrip('. ')}. "
        "VLLM_LOGGING_LEVEL=DEBUG shows where"
    ) from None
