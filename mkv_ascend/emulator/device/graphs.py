# SPDX-License-Identifier: Apache-2.0
"""ACL graphs are not emulated: every name fails, and says so."""

from __future__ import annotations

from typing import Any, NoReturn


def _refuse(name: str) -> NoReturn:
    raise NotImplementedError(
        f"emulated NPU has no torch.npu.{name}: ACL graphs are not emulated; "
        "run with enforce_eager=True (--enforce-eager)"
    )


class NPUGraph:
    def __init__(self, *arguments: Any, **options: Any) -> None:
        _refuse("NPUGraph")


class graph:
    def __init__(self, *arguments: Any, **options: Any) -> None:
        _refuse("graph")


def make_graphed_callables(*arguments: Any, **options: Any) -> NoReturn:
    _refuse("make_graphed_callables")


def graph_task_group_begin(stream: Any) -> NoReturn:
    _refuse("graph_task_group_begin")


def graph_task_group_end(stream: Any) -> NoReturn:
    _refuse("graph_task_group_end")


def graph_task_update_begin(stream: Any, handle: Any) -> NoReturn:
    _refuse("graph_task_update_begin")


def graph_task_update_end(stream: Any) -> NoReturn:
    _refuse("graph_task_update_end")


def graph_pool_handle() -> tuple[int, int]:
    """A name for a pool; engines ask for one at start-up even when they run without graphs."""
    return (0, 0)
