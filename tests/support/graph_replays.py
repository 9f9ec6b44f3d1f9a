# SPDX-License-Identifier: Apache-2.0
"""Graphs that an engine of this process replays, noted where nothing of ours counts them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def of_target(executor: Any) -> list[Any]:
    """A list that gets the description of each full graph of the target that is replayed here."""
    noted: list[Any] = []
    runner = _runner_of(executor)
    graphs = getattr(runner, "cudagraph_manager", None)
    if graphs is not None:  # model runner V2
        graphs.run_fullgraph = _noting(noted, graphs.run_fullgraph)
    # Model runner V1 with graphs of whole steps.
    captured = getattr(getattr(runner, "model", None), "concrete_aclgraph_entries", {})
    for described, entry in captured.items():
        entry.aclgraph.replay = _noting(noted, entry.aclgraph.replay, described)
    return noted


def of_host_proposals(executor: Any) -> list[int]:
    """A list that gets, of each proposal of the host's own on model runner V2, how many graphs it
    replayed, if any.

    What the host calls to replay has another name in each of its speculators. All of them end in
    the device's graphs, and those are noted.
    """
    noted: list[int] = []
    speculator = getattr(_runner_of(executor), "speculator", None)
    if speculator is not None and not type(speculator).__module__.startswith("mkv_ascend."):
        import torch

        replays: list[str] = []
        npu: Any = getattr(torch, "npu", None)
        graph = npu.NPUGraph
        graph.replay = _noting(replays, graph.replay, "a graph")
        speculator.propose = _counting(noted, speculator.propose, replays)
    return noted


def _runner_of(executor: Any) -> Any:
    """The model runner, if it is in this process."""
    worker = getattr(executor, "driver_worker", None)
    return getattr(getattr(worker, "worker", None), "model_runner", None)


def _noting(noted: list[Any], run: Callable[..., Any], *what: Any) -> Callable[..., Any]:
    """``run``, each of whose calls is noted: ``what`` it stands for, or its arguments."""

    def noting(*arguments: Any, **named: Any) -> Any:
        noted.extend(what or arguments)
        return run(*arguments, **named)

    return noting


def _counting(noted: list[int], run: Callable[..., Any], replays: list[str]) -> Callable[..., Any]:
    """``run``, each of whose calls that adds to ``replays`` is noted, by how many it adds."""

    def counting(*arguments: Any, **named: Any) -> Any:
        before = len(replays)
        answer = run(*arguments, **named)
        if (count := len(replays) - before) and not named.get("dummy_run"):
            noted.append(count)
        return answer

    return counting
