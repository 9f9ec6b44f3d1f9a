# SPDX-License-Identifier: Apache-2.0
"""Gives forked processes a planted fault, for ``tools/planted_faults.py``.

Processes import a copy of this module at their start, which that tool puts on ``PYTHONPATH`` under
the name ``sitecustomize``. A process that imports our modules itself reads the fault from the file
that it is planted in. A fork of a process that has imported them before the fault was planted gets
it here: functions of that file are given the code that the file has now.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import traceback
from pathlib import Path
from types import CodeType, FunctionType

FOLDER = os.environ.get("PLANTED_FAULT_FOLDER")
"""Holds ``planted.json`` while a fault is planted: its name, its file and the source before."""
_planted = ""


def plant() -> None:
    """Let the functions of this process be those of the planted file; once for each fault."""
    global _planted
    assert FOLDER is not None
    order = {}
    with contextlib.suppress(FileNotFoundError):
        order = json.loads(Path(FOLDER, "planted.json").read_text("utf-8"))
    if not order or order["name"] == _planted:
        return
    _planted = order["name"]
    try:
        file = order["file"]
        exchange(file, order["before"], Path(file).read_text("utf-8"))
    except Exception:
        # Of what is raised behind a fork nobody hears.
        with Path(FOLDER, "errors.txt").open("a", encoding="utf-8") as errors:
            errors.write(traceback.format_exc())


def exchange(file: str, before: str, after: str) -> None:
    """Give functions that were made of ``before`` the code of ``after``, place by place."""
    old, new = (codes_inside(compile(source, file, "exec")) for source in (before, after))
    changed: dict[tuple[str, int], CodeType] = {}
    for place, code in old.items():
        if code.co_name.startswith("<") and code.co_name != "<lambda>":
            continue  # a comprehension, which nothing keeps
        key = code.co_name, code.co_firstlineno
        if key in changed:
            raise ValueError(f"two functions {key[0]} begin in line {key[1]} of {file}")
        changed[key] = new[place]
    # A process that is only there to be forked keeps its objects from the collector.
    gc.unfreeze()
    for one in gc.get_objects():
        if type(one) is FunctionType and one.__code__.co_filename == file:
            one.__code__ = changed[one.__code__.co_name, one.__code__.co_firstlineno]


def codes_inside(code: CodeType, place: tuple[int, ...] = ()) -> dict[tuple[int, ...], CodeType]:
    """Code of each function and class inside ``code``, by its place among others."""
    found = {}
    inner = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    for index, one in enumerate(inner):
        here = (*place, index)
        found[here] = one
        found.update(codes_inside(one, here))
    return found


if FOLDER is not None:
    os.register_at_fork(after_in_child=plant)
