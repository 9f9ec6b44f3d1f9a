# SPDX-License-Identifier: Apache-2.0
"""``vllm serve`` ends with one message where vLLM or vllm-ascend refuse a configuration.

vLLM's command asks the platform to prepare before it reads its arguments; there
``EngineArgs.create_engine_config`` is wrapped. What rules of ours refuse ends in the same way.
"""

from __future__ import annotations

import os
from importlib.metadata import version
from typing import Any, NoReturn

from mkv_ascend.adapters.common.judge.silent_assertions import assertion_of
from mkv_ascend.adapters.patching import patch
from mkv_ascend.adapters.refusal import StartUpRefused, is_vllm_command
from mkv_ascend.rules.refusal import Refusal

REFUSALS = (ValueError, AssertionError, OSError, RuntimeError, ImportError)
"""What vLLM and vllm-ascend raise where they do not serve what is asked for: vllm-ascend's options
for some models are refused by a RuntimeError (NotImplementedError is one), and what is not
installed by an ImportError. Others are faults, whose traceback is of use."""


@patch(
    name="refusals before the start",
    target="vllm.engine.arg_utils:EngineArgs.create_engine_config",
)
def say_refusals_alone(original: Any, arguments: Any, *args: Any, **kwargs: Any) -> Any:
    """``EngineArgs.create_engine_config``; in vLLM's own command an error is one message."""
    if not is_vllm_command():
        return original(arguments, *args, **kwargs)
    try:
        return original(arguments, *args, **kwargs)
    except REFUSALS as error:
        _say_what_vllm_says(error)


def words_of(error: BaseException) -> str:
    """What a host says, in its own words without what pydantic and lists of classes add."""
    # pydantic's text repeats all of its input; each of its errors has a message.
    listed = error.errors() if hasattr(error, "errors") else ()
    words = "; ".join(filter(None, map(_problem, listed)))
    if not words:
        plain = not listed and isinstance(error, REFUSALS) and str(error).strip()
        words = str(error) if plain else f"{type(error).__name__}: {error}".rstrip(": ")
    # 300 names of classes.
    words, _, _ = words.partition(" Supported architectures:")
    return words.strip().rstrip(".")


def _problem(found: Any) -> str:
    words = str(found["msg"]).removeprefix("Value error, ").removeprefix("Assertion failed, ")
    place = ".".join(str(part) for part in found.get("loc", ()))
    return f"{place}: {words}" if place else words


def of_host(
    words: str,
    possible: str = "what they say above",
    change: str = "correct what they name",
) -> Refusal:
    """What a host refuses, as a refusal."""
    return Refusal(
        "host",
        f"vLLM {version('vllm')} or vllm-ascend {version('vllm-ascend')} refuses this "
        f"configuration: {words}",
        possible,
        change,
    )


def of_error(error: BaseException) -> Refusal:
    """What a host raises as a refusal: in its words, or in ours around an assertion without any."""
    found = assertion_of(error)
    if found is None:
        return of_host(words_of(error))
    read = " and ".join(found.options)
    if not read:
        return of_host(found.words, "what makes it hold", "change the option that it reads")
    return of_host(
        f"{read}: {found.words}",
        f"values of {read} that make it hold",
        f"change {read}, or leave it out",
    )


def _say_what_vllm_says(error: Exception) -> NoReturn:
    """End with vLLM's own words; with VLLM_LOGGING_LEVEL=DEBUG the error is raised as it is."""
    if os.environ.get("VLLM_LOGGING_LEVEL", "").upper() == "DEBUG":
        raise error
    said = of_error(error).asked
    raise StartUpRefused(f"{said}. VLLM_LOGGING_LEVEL=DEBUG shows where") from None
