# SPDX-License-Identifier: Apache-2.0
"""Where in the program a call to the device came from."""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
from types import FrameType

_EMULATOR_FOLDER = os.path.dirname(os.path.abspath(__file__)) + os.sep


@functools.lru_cache(maxsize=1)
def _library_folders() -> tuple[str, ...]:
    """Folders whose frames are not "the program": torch and the emulator itself."""
    specification = importlib.util.find_spec("torch")
    folders = list(specification.submodule_search_locations or ()) if specification else []
    return (_EMULATOR_FOLDER, *(os.path.abspath(folder) + os.sep for folder in folders))


@functools.lru_cache(maxsize=4096)
def _is_program(filename: str) -> bool:
    # "<string>", "<frozen importlib>" and the like are no place that one can open.
    return not filename.startswith("<") and not os.path.abspath(filename).startswith(
        _library_folders()
    )


@functools.lru_cache(maxsize=4096)
def _short_name(filename: str) -> str:
    """The file relative to the longest import folder above it, the same on every machine."""
    path = os.path.abspath(filename)
    roots = [os.path.abspath(entry or os.curdir) + os.sep for entry in (*sys.path, os.curdir)]
    above = [root for root in roots if path.startswith(root)]
    return path[len(max(above, key=len)) :] if above else path


def calling_place() -> str:
    """``file:line`` of the innermost frame outside torch and the emulator.

    The file is relative to its folder on ``sys.path``, for instance
    ``vllm_ascend/worker/model_runner_v1.py:1234``. ``"<unknown>"`` when no such frame exists.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if _is_program(frame.f_code.co_filename):
            return f"{_short_name(frame.f_code.co_filename)}:{frame.f_lineno}"
        frame = frame.f_back
    return "<unknown>"
