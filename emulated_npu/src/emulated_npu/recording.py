# SPDX-License-Identifier: Apache-2.0
"""Recording instead of running: how launches that Python makes get onto a tape.

A stream records while a graph is captured on it, while a task of a graph is updated on it, and
while it waits for an event (csrc/recording.h). ATen operators are recorded by the native
device. An operator, Triton kernel or collective that Python runs asks ``current_tape()`` and, when
there is one, appends a function that runs it again, on the same addresses, at each replay.
"""

from __future__ import annotations

import enum
import functools
import importlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from emulated_npu import counters
from emulated_npu.nested import tensors_in


class RecordingKind(enum.IntEnum):
    """What a tape is for; the numbers are those of the native device."""

    CAPTURE = 1
    UPDATE = 2
    TAIL = 3


Action = Callable[[], None]


class Tape:
    """A list of launches: those of ATen kept by the native device, those of Python here.

    kind: what it is for. pool: where a capture allocates; 0 for none. waits_for: of a tail, what
    its stream waits for, as errors shall say it.
    """

    def __init__(self, kind: RecordingKind, pool: int = 0, waits_for: str = "") -> None:
        self.kind = kind
        self.id: int = _native().tapes().tape_new(int(kind), pool, waits_for)
        self.actions: dict[int, Action] = {}

    def __len__(self) -> int:
        return int(_native().tapes().tape_size(self.id))

    def append(self, name: str, operands: Iterable[torch.Tensor], action: Action) -> None:
        """Add a launch that Python runs. operands: the npu tensors whose addresses it uses."""
        index = _native().tapes().tape_append(self.id, name, list(operands))
        self.actions[index] = action
        if self.kind is RecordingKind.TAIL:
            counters.record_launch(name)

    def run(self, first: int) -> int:
        """Run native launches from ``first`` on; the index of Python's next, or the length."""
        return int(_native().tapes().tape_run(self.id, first))

    def run_action(self, index: int) -> None:
        """Run a launch that Python runs."""
        if self.kind is not RecordingKind.TAIL:
            counters.record_graph_launch(self.name(index))
        self.actions[index]()

    def kept(self, tensor: torch.Tensor) -> torch.Tensor:
        """``tensor`` as a launch keeps it: a CPU tensor over its memory.

        It keeps the address only; in a tail it keeps the memory.
        """
        return _native().tapes().tape_kept(self.id, tensor)

    def name(self, index: int) -> str:
        return str(_native().tapes().tape_name(self.id, index))

    def place(self, index: int) -> str:
        """``file:line`` at which a launch was recorded."""
        return str(_native().tapes().tape_place(self.id, index))

    def attach(self, stream: torch.Stream) -> None:
        """Have ``stream`` record here from now on."""
        _native().tapes().tape_attach(self.id, stream.device_index, stream.stream_id)
        _attached[self.id] = self

    def detach(self, stream: torch.Stream) -> None:
        """Have ``stream`` run its launches again."""
        _native().tapes().tape_detach(stream.device_index, stream.stream_id)
        _attached.pop(self.id, None)

    def records(self, stream: torch.Stream) -> bool:
        """Whether ``stream`` records here."""
        found = _native().tapes().tape_of_stream(stream.device_index, stream.stream_id)
        return bool(found == self.id)

    def end_capture(self) -> None:
        """Have all streams that took part run their launches again."""
        _attached.pop(self.id, None)
        _native().tapes().tape_end(self.id)

    def check_joined(self) -> None:
        """RuntimeError when a stream that took part was not joined back to the first."""
        _native().tapes().tape_check_joined(self.id)

    def replace(self, first: int, count: int, update: Tape) -> None:
        """Put the launches of ``update`` in the place of ``count`` launches.

        RuntimeError when they are not the same operators in the same order.
        """
        _native().tapes().tape_replace(self.id, first, count, update.id)
        for index in range(count):
            self.actions.pop(first + index, None)
            if index in update.actions:
                self.actions[first + index] = update.actions[index]

    def delete(self) -> None:
        self.actions.clear()
        _native().tapes().tape_delete(self.id)


_attached: dict[int, Tape] = {}


def current_tape() -> Tape | None:
    """The tape on which this thread's current stream records; None when it runs its launches."""
    if not _attached:
        return None
    return _attached.get(_native().tapes().current_tape())


def before_host_read(what: str) -> None:
    """Wait for the current stream, of whose memory ``what`` needs a value.

    RuntimeError if the stream records, and if it waits for what only this thread would do.
    """
    if _attached:
        _native().tapes().wait_for_host_read(what)


def map_tensors(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """``value`` with each tensor in it changed; lists and tuples are copied."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, (list, tuple)):
        items = [map_tensors(item, change) for item in value]
        # A named tuple takes its fields as arguments.
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value


class FrozenCall:
    """A call as a launch keeps it: npu tensors by address, everything else by value.

    arguments, named: as the kernel gets them, npu tensors as CPU tensors over the same memory.
    """

    def __init__(self, tape: Tape, arguments: Iterable[Any], named: dict[str, Any]) -> None:
        self._tape = tape
        self._operands: list[torch.Tensor] = []

        def freeze(tensor: torch.Tensor) -> torch.Tensor:
            if tensor.device.type != "npu":
                return tensor.clone()
            self._operands.append(tensor)
            return tape.kept(tensor)

        self.arguments = [map_tensors(value, freeze) for value in arguments]
        self.named = {name: map_tensors(value, freeze) for name, value in named.items()}

    def append(self, name: str, action: Action) -> None:
        """Add the call to the tape; ``action`` runs it again."""
        operands, self._operands = self._operands, []  # a graph keeps no tensor alive
        self._tape.append(name, operands, action)


class RecordedResults:
    """Where the results of a launch are, so that each replay can put them there."""

    def __init__(self, tape: Tape, device_index: int | None) -> None:
        self._tape = tape
        self._device = -1 if device_index is None else device_index
        self._places: list[torch.Tensor | None] = []

    def operand(self, tensor: torch.Tensor) -> torch.Tensor:
        """A result that is an operand: there is nothing to put anywhere."""
        self._places.append(None)
        return tensor

    def give_back(self, result: torch.Tensor) -> torch.Tensor:
        """A result of the kernel as an npu tensor: the view of an operand, or new memory."""
        tensor, is_new = _native().tapes().recorded_result(result, self._device)
        self._places.append(self._tape.kept(tensor) if is_new else None)
        return tensor

    def put(self, result: Any) -> None:
        """Write the results of a replay where those of the capture were."""
        for place, tensor in zip(self._places, tensors_in(result), strict=True):
            if place is not None:
                place.copy_(tensor)


def record_call(
    name: str, kernel: Callable[..., Any], arguments: Iterable[Any], named: dict[str, Any]
) -> bool:
    """Record a call that only writes to tensors it is given; False when the stream runs it.

    Such a call need not run while recording: no shape depends on it.
    """
    tape = current_tape()
    if tape is None:
        return False
    call = FrozenCall(tape, arguments, named)

    def run() -> None:
        kernel(*call.arguments, **call.named)

    call.append(name, run)
    return True


def record_results(
    name: str, kernel: Callable[..., Any], arguments: Sequence[Any], named: dict[str, Any]
) -> tuple[Any, bool]:
    """Record a call that has results; these, and whether it was recorded.

    The kernel runs to learn their shapes, on scratch memory: which operands it writes is not known.
    """
    tape = current_tape()
    if tape is None:
        return None, False
    call = FrozenCall(tape, arguments, named)
    results = RecordedResults(tape, None)
    scratch = [map_tensors(value, _native().scratch_alias) for value in arguments]
    named_scratch = {
        key: map_tensors(value, _native().scratch_alias) for key, value in named.items()
    }
    with torch.no_grad():
        result = map_tensors(kernel(*scratch, **named_scratch), results.give_back)

    def run() -> None:
        with torch.no_grad():
            results.put(kernel(*call.arguments, **call.named))

    call.append(name, run)
    return result, True


@functools.cache
def _native() -> Any:
    # Late: kernels and their unit tests need no native extension.
    return importlib.import_module("emulated_npu.device.native")
