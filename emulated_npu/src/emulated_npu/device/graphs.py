# SPDX-License-Identifier: Apache-2.0
"""ACL graphs: capture, replay, and the update of single tasks.

Source of the semantics: torch_npu's documentation of torch.npu.NPUGraph and torch.npu.graph, CANN's
of aclmdlRI (capture, task groups, task update), and PyTorch's of torch.cuda.CUDAGraph, which
torch_npu follows. A capture runs nothing that lasts: arguments are frozen by value, tensors by
address. docs/emulated_npu.md lists the mistakes that fail here and what is not modelled.
"""

from __future__ import annotations

import gc
import itertools
import weakref
from dataclasses import dataclass
from typing import Any, NoReturn

import torch

from emulated_npu import counters
from emulated_npu.device import memory, replay
from emulated_npu.device.devices import synchronize
from emulated_npu.device.streams import Stream, StreamContext, current_stream
from emulated_npu.recording import RecordingKind, Tape, current_tape

PoolHandle = tuple[int, int]

_pool_numbers = itertools.count(1)
_captures: list[NPUGraph] = []
"""The graph that is being captured; at most one."""


def graph_pool_handle() -> PoolHandle:
    """A name for a pool of memory that graphs may share."""
    return (0, next(_pool_numbers))


def is_current_stream_capturing() -> bool:
    tape = current_tape()
    return tape is not None and tape.kind is RecordingKind.CAPTURE


def _refuse_second_capture() -> None:
    if _captures:
        raise RuntimeError(
            "emulated NPU: a capture inside another capture; end the first one before"
        )


class NPUGraph:
    """A list of launches, captured once and replayed as one launch."""

    def __init__(self, keep_graph: bool = False) -> None:
        if keep_graph:
            _refuse("NPUGraph(keep_graph=True)", "capture without it")
        self._tape: Tape | None = None
        self._pool: PoolHandle | None = None
        self._captured = False

    def capture_begin(
        self, pool: PoolHandle | None = None, capture_error_mode: str = "global"
    ) -> None:
        """Record what the current stream launches from now on.

        RuntimeError inside another capture, on the default stream, or when this graph holds a
        capture already (reset it first).
        """
        stream = current_stream()
        _refuse_second_capture()
        if stream.stream_id == 0:
            raise RuntimeError(
                "emulated NPU: capture on the default stream; use a stream of its own, as "
                "torch.npu.graph does"
            )
        if self._tape is not None:
            raise RuntimeError("emulated NPU: this graph holds a capture already; reset() it first")
        self._pool = graph_pool_handle() if pool is None else pool
        tape = Tape(RecordingKind.CAPTURE, pool=self._pool[1])
        weakref.finalize(self, tape.delete).atexit = False
        tape.attach(stream)
        self._tape = tape
        _captures.append(self)

    def capture_end(self) -> None:
        """End the capture; RuntimeError when a stream that took part was not joined back."""
        tape = self._end_recording()
        try:
            tape.check_joined()
        except RuntimeError:
            self.reset()
            raise
        self._captured = True

    def abort_capture(self) -> None:
        """Give up a capture that failed: its streams run their launches again."""
        self._end_recording()
        self.reset()

    def _end_recording(self) -> Tape:
        if self._tape is None or self not in _captures:
            raise RuntimeError("emulated NPU: capture_end without capture_begin")
        _captures.remove(self)
        _open_groups.pop(self._tape.id, None)
        self._tape.end_capture()
        return self._tape

    def replay(self) -> None:
        """Run the captured launches on the current stream.

        Returns at an event that is not set yet; the rest runs when it is recorded. RuntimeError
        when memory that the graph uses was freed since the capture.
        """
        if self._tape is None or not self._captured:
            raise RuntimeError("emulated NPU: replay of a graph that holds no capture")
        tape = current_tape()
        if tape is not None and tape.kind is not RecordingKind.TAIL:
            raise RuntimeError("emulated NPU: replay of a graph inside a capture or task update")
        replay.count_replay()
        replay.launch(self._tape, current_stream())

    def reset(self) -> None:
        """Forget the capture."""
        if self._tape is not None:
            self._tape.delete()
        self._tape = None
        self._captured = False

    def pool(self) -> PoolHandle:
        """The handle of the pool in which the capture allocated."""
        if self._pool is None:
            raise RuntimeError("emulated NPU: this graph holds no capture, so it has no pool")
        return self._pool

    def super_kernel_optimize(self, optimize_options: dict[str, Any] | None = None) -> None:
        """Fuse launches of the capture; which ones changes no value, so here they stay apart."""
        if not self._captured:
            raise RuntimeError("emulated NPU: super_kernel_optimize of a graph without a capture")

    def update(self, *arguments: Any, **options: Any) -> NoReturn:
        _refuse("NPUGraph.update", "update with graph_task_update_begin and _end")

    def debug_dump(self, *arguments: Any, **options: Any) -> NoReturn:
        _refuse("NPUGraph.debug_dump", "look at the counters' graph_launches")


class graph:
    """Context that captures into ``npu_graph``, on ``stream`` or on one of its own.

    pool: a handle, or the pool() of another graph, to share its memory.
    """

    def __init__(
        self,
        npu_graph: NPUGraph,
        pool: PoolHandle | None = None,
        stream: torch.Stream | None = None,
        auto_dispatch_capture: bool = False,
        capture_error_mode: str = "global",
    ) -> None:
        if auto_dispatch_capture:
            _refuse("graph(auto_dispatch_capture=True)", "capture task groups yourself")
        self._graph = npu_graph
        self._pool = pool
        self._error_mode = capture_error_mode
        self._stream = StreamContext(Stream() if stream is None else stream)

    def __enter__(self) -> None:
        _refuse_second_capture()
        synchronize()
        gc.collect()
        memory.empty_cache()
        self._stream.__enter__()
        try:
            self._graph.capture_begin(pool=self._pool, capture_error_mode=self._error_mode)
        except BaseException:
            self._stream.__exit__(None, None, None)
            raise

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        try:
            if kind is None:
                self._graph.capture_end()
            else:
                self._graph.abort_capture()
        finally:
            self._stream.__exit__(None, None, None)


@dataclass(frozen=True)
class TaskGroup:
    """Launches of a graph that can be updated together: ``count`` of them from ``first`` on."""

    tape: Tape
    first: int
    count: int


_open_groups: dict[int, int] = {}
"""Tape that is being captured -> first launch of its open task group."""
_open_updates: dict[tuple[int, int], tuple[TaskGroup, Tape]] = {}
"""Stream on which a group is being updated -> the group and its new launches."""


def _recording(stream: torch.Stream, what: str) -> Tape:
    for npu_graph in _captures:
        tape = npu_graph._tape
        if tape is not None and tape.records(stream):
            return tape
    raise RuntimeError(f"emulated NPU: {what} on a stream that is not being captured")


def graph_task_group_begin(stream: torch.Stream) -> None:
    """From now on, launches of the capture belong to one task group."""
    tape = _recording(stream, "graph_task_group_begin")
    if tape.id in _open_groups:
        raise RuntimeError("emulated NPU: a task group inside a task group; end the first before")
    _open_groups[tape.id] = len(tape)


def graph_task_group_end(stream: torch.Stream) -> TaskGroup:
    """End the task group; the handle by which it can be updated."""
    tape = _recording(stream, "graph_task_group_end")
    if tape.id not in _open_groups:
        raise RuntimeError("emulated NPU: graph_task_group_end without graph_task_group_begin")
    first = _open_groups.pop(tape.id)
    return TaskGroup(tape, first, len(tape) - first)


def graph_task_update_begin(stream: torch.Stream, handle: TaskGroup) -> None:
    """From now on, launches on ``stream`` do not run: they replace those of the task group.

    RuntimeError when a replay that is under way has launched the group already.
    """
    if replay.has_launched(handle.tape, handle.first):
        raise RuntimeError(
            f"emulated NPU: update of a task group (captured at {handle.tape.place(handle.first)}) "
            "that the replay under way has launched already; update it before its event is recorded"
        )
    update = Tape(RecordingKind.UPDATE)
    update.attach(stream)
    _open_updates[stream.device_index, stream.stream_id] = handle, update


def graph_task_update_end(stream: torch.Stream) -> None:
    """End the update; RuntimeError when its launches are not those of the task group."""
    opened = _open_updates.pop((stream.device_index, stream.stream_id), None)
    if opened is None:
        raise RuntimeError("emulated NPU: graph_task_update_end without graph_task_update_begin")
    handle, update = opened
    update.detach(stream)
    try:
        handle.tape.replace(handle.first, handle.count, update)
    finally:
        update.delete()
    counters.record_launch("graph_task_update")


def make_graphed_callables(*arguments: Any, **options: Any) -> NoReturn:
    _refuse("make_graphed_callables", "capture with torch.npu.graph")


def _refuse(name: str, instead: str) -> NoReturn:
    raise NotImplementedError(f"emulated NPU has no torch.npu.{name}; {instead}")
