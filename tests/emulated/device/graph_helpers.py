# SPDX-License-Identifier: Apache-2.0
"""Captures for the tests of graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

import torch


def on_npu(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32).npu()


def captured(function: Callable[[], Any], pool: Any = None) -> tuple[Any, Any]:
    """A graph of what ``function`` launches, and what it returned."""
    graph = torch.npu.NPUGraph()
    with without_collection(), torch.npu.graph(graph, pool=pool):
        result = function()
    return graph, result


def without_collection() -> Any:
    """A capture collects garbage first, which takes most of its time here."""
    return patch("gc.collect", lambda: None)


@contextmanager
def capturing() -> Iterator[Any]:
    """A capture whose graph is of no interest."""
    graph = torch.npu.NPUGraph()
    with without_collection(), torch.npu.graph(graph):
        yield graph


class UpdatableGraph(NamedTuple):
    """out = source + number, where ``number`` can be updated; then result = out * 10."""

    graph: Any
    event: Any
    group: Any
    source: torch.Tensor
    out: torch.Tensor
    result: torch.Tensor
    stream: Any  # for updates


def updatable(number: float = 1) -> UpdatableGraph:
    """As vllm-ascend captures attention: wait, reset, one operator in a task group."""
    event, source, out = torch.npu.ExternalEvent(), on_npu(1, 2), on_npu(0, 0)

    def capture() -> tuple[Any, torch.Tensor]:
        stream = torch.npu.current_stream()
        event.wait(stream)
        event.reset(stream)
        torch.npu.graph_task_group_begin(stream)
        torch.add(source, number, out=out)
        group = torch.npu.graph_task_group_end(stream)
        return group, out * 10

    graph, (group, result) = captured(capture)
    return UpdatableGraph(graph, event, group, source, out, result, torch.npu.Stream())


def update(parts: UpdatableGraph, launches: Callable[[], Any], record: bool = True) -> None:
    with torch.npu.stream(parts.stream):
        torch.npu.graph_task_update_begin(parts.stream, parts.group)
        launches()
        torch.npu.graph_task_update_end(parts.stream)
        if record:
            parts.event.record(parts.stream)


def add(parts: UpdatableGraph, number: float) -> None:
    """What an update launches: the same operator with another number."""
    torch.add(parts.source, number, out=parts.out)
