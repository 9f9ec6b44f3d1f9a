# SPDX-License-Identifier: Apache-2.0
"""Running recorded launches, and streams that wait in the middle of it.

A replay stops at an event that is not set, and its call returns, as a launch on a device does. The
stream then waits: what is launched on it goes to a tail (a tape), and when the event is recorded,
the rest of the graph runs, then the tail. The thread that launched the graph would wait for such a
stream for ever, which is an error that names the event; other threads wait (``host_waits.py``).
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Protocol

import torch

from emulated_npu import counters
from emulated_npu.device import host_waits
from emulated_npu.recording import RecordingKind, Tape


class Waitable(Protocol):
    """An event that graphs wait for."""

    is_set: bool


class Wait:
    """The action of a tape that waits for ``event``."""

    def __init__(self, event: Waitable) -> None:
        self.event = event

    def __call__(self) -> None:
        """Waiting is done by GraphRun."""


class GraphRun:
    """One run of a tape; ``next`` is the launch to run next."""

    def __init__(self, tape: Tape) -> None:
        self.tape = tape
        self.next = 0

    def advance(self) -> Wait | None:
        """Run to the end, or up to the wait that is returned."""
        while (index := self.tape.run(self.next)) < len(self.tape):
            self.next = index
            action = self.tape.actions[index]
            if isinstance(action, Wait) and not action.event.is_set:
                return action
            try:
                self.tape.run_action(index)
            except Exception as error:
                raise RuntimeError(
                    f"emulated NPU: graph replay: {self.tape.name(index)} (captured at "
                    f"{self.tape.place(index)}) failed: {error}"
                ) from error
            self.next = index + 1
        self.next = len(self.tape)
        return None

    def position(self) -> str:
        """What it waits for, in words."""
        return (
            f"an event of a graph that is being replayed (waited for by launch {self.next} of "
            f"{len(self.tape)}, captured at {self.tape.place(self.next)})"
        )


class WaitingStream:
    """A stream that waits for an event: what is left to run on it, in order."""

    def __init__(self, stream: torch.Stream, run: GraphRun, wait: Wait) -> None:
        self.stream = stream
        self.runs = deque([run])
        self._launcher = threading.current_thread()
        self._wait_with_tail(wait)

    def _wait_with_tail(self, wait: Wait) -> None:
        self.wait = wait
        self.tail = Tape(RecordingKind.TAIL, waits_for=self.runs[0].position())
        host_waits.begin(self.tail.id, self._launcher)
        self.tail.attach(self.stream)

    def enqueue(self, run: GraphRun) -> None:
        """Run another graph after all that was launched so far."""
        self.tail.detach(self.stream)
        self.runs.append(GraphRun(self.tail))
        self.runs.append(run)
        self._wait_with_tail(self.wait)

    def advance(self) -> bool:
        """Run what can run now; True when nothing is left."""
        self.tail.detach(self.stream)
        self.runs.append(GraphRun(self.tail))
        for tape in self._tails():
            host_waits.begin_to_run(tape.id)
        try:
            return self._advance()
        except BaseException:
            # What is behind a launch that failed never runs, and nobody may wait for it.
            for tape in self._tails():
                _forget(tape)
            raise

    def _advance(self) -> bool:
        while self.runs:
            wait = self.runs[0].advance()
            if wait is not None:
                for tape in self._tails():
                    host_waits.wait_again(tape.id)
                self._wait_with_tail(wait)
                return False
            tape = self.runs.popleft().tape
            if tape.kind is RecordingKind.TAIL:
                _forget(tape)
        return True

    def _tails(self) -> list[Tape]:
        return [run.tape for run in self.runs if run.tape.kind is RecordingKind.TAIL]


def _forget(tail: Tape) -> None:
    tail.delete()
    host_waits.end(tail.id)


_waiting: dict[tuple[int, int], WaitingStream] = {}


def _key(stream: torch.Stream) -> tuple[int, int]:
    return stream.device_index, stream.stream_id


def launch(tape: Tape, stream: torch.Stream) -> None:
    """Replay ``tape`` on ``stream``, up to its end or to an event that is not set."""
    waiting = _waiting.get(_key(stream))
    if waiting is not None:
        waiting.enqueue(GraphRun(tape))
        return
    run = GraphRun(tape)
    wait = run.advance()
    if wait is not None:
        _waiting[_key(stream)] = WaitingStream(stream, run, wait)


def resume(event: Waitable) -> None:
    """Run on what waits for ``event``, which is set now."""
    for key, waiting in list(_waiting.items()):
        if waiting.wait.event is not event or _waiting.get(key) is not waiting:
            continue
        # A launch that fails leaves no stream waiting for ever.
        del _waiting[key]
        if not waiting.advance():
            _waiting[key] = waiting


def has_launched(tape: Tape, index: int) -> bool:
    """Whether a run of ``tape`` that is under way is past the launch ``index``."""
    return any(
        run.tape is tape and run.next > index
        for waiting in _waiting.values()
        for run in waiting.runs
    )


def count_replay() -> None:
    """One launch: the host does nothing else for all the launches of a graph."""
    counters.record_launch("NPUGraph.replay")
