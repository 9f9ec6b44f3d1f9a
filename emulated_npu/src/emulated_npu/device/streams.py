# SPDX-License-Identifier: Apache-2.0
"""Streams and events of ``torch.npu``.

The emulated device does all work in program order, when it is called. So a stream is a name with an
id of its own, an event a moment in time, and waiting never waits. What a real device would run at
the same time, or in the wrong order because of a missing wait, is not shown here. The exception is
a graph that waits for an ExternalEvent: see ``replay.py``.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from emulated_npu.device import replay
from emulated_npu.device.devices import DeviceLike, device_index
from emulated_npu.recording import RecordingKind, Tape, current_tape


class Stream(torch.Stream):
    """A queue of the device; ``stream_id`` is 0 for the default stream, else unique."""

    def __new__(cls, device: DeviceLike = None, priority: int = 0, **ids: Any) -> Stream:
        if "stream_id" in ids:
            return super().__new__(cls, **ids)
        return super().__new__(cls, device=torch.device("npu", device_index(device)))

    def __init__(self, device: DeviceLike = None, priority: int = 0, **ids: Any) -> None:
        """``priority`` is accepted and has no effect; ``ids`` name an existing stream."""

    @property
    def npu_stream(self) -> int:
        """The handle that operators take; here the id."""
        return self.stream_id

    def wait_event(self, event: Any) -> None:
        """Wait for ``event``, which need not be ours: as torch_npu does it, by ``event.wait``.

        vllm-ascend leaves a stand-in of its own in ``torch.cuda.Event``.
        """
        event.wait(self)

    def wait_stream(self, stream: Any) -> None:
        """Wait for what ``stream`` was given so far, as torch_npu does it: for an event of its own.

        torch.Stream's method would take any object's memory for a stream's.
        """
        self.wait_event(stream.record_event())

    def record_event(self, event: Event | None = None) -> Event:  # type: ignore[override]
        """Record ``event`` (None: a new one) on this stream and return it."""
        event = Event() if event is None else event
        event.record(self)
        return event


class ExternalStream(Stream):
    """A stream that other code made; here like any other."""


class SyncLaunchStream(Stream):
    """A stream whose launches are synchronous; here all are."""


class Event(torch.Event):
    """A moment on a stream. All events keep their time, ``enable_timing`` or not."""

    _recorded_at: float | None = None

    def __new__(
        cls,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
        external: bool = False,
    ) -> Event:
        return super().__new__(cls, device="npu", enable_timing=True)

    def __init__(
        self,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
        external: bool = False,
    ) -> None:
        if interprocess:
            raise NotImplementedError("emulated NPU has no events shared between processes")

    def record(self, stream: torch.Stream | None = None) -> None:
        """Take the time; ``stream`` (None: the current one) has nothing left to do."""
        super().record(stream)
        self._recorded_at = time.perf_counter()

    def elapsed_time(self, end_event: torch.Event) -> float:
        """Milliseconds from this event to ``end_event``: host time, not a device's.

        Kept here because torch.Event refuses to be compared with a subclass of itself.
        """
        end = getattr(end_event, "_recorded_at", None)
        if self._recorded_at is None or end is None:
            raise RuntimeError("elapsed_time needs two recorded torch.npu.Event objects")
        return (end - self._recorded_at) * 1e3


class ExternalEvent(Event):
    """An event that a graph waits for and the program records, to run something in between.

    Source: CANN's aclrtCreateEventExWithFlag (ACL_EVENT_EXTERNAL) and torch_npu's ExternalEvent.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.is_set = False

    def record(self, stream: torch.Stream | None = None) -> None:
        """Set the event once ``stream`` has come here; graphs that wait for it go on."""
        if self._recorded_on_tape("ExternalEvent.record", stream, self._set):
            return
        super().record(stream)
        self._set()

    def wait(self, stream: torch.Stream | None = None) -> None:
        """Have ``stream`` wait until the event is set."""
        if self._recorded_on_tape("ExternalEvent.wait", stream, replay.Wait(self)):
            return
        if not self.is_set:
            waiting = Tape(RecordingKind.TAIL)
            waiting.append("ExternalEvent.wait", [], replay.Wait(self))
            replay.launch(waiting, current_stream() if stream is None else stream)

    def reset(self, stream: torch.Stream | None = None) -> None:
        """Make the event unset again once ``stream`` has come here."""
        if not self._recorded_on_tape("ExternalEvent.reset", stream, self._unset):
            self._unset()

    def _set(self) -> None:
        self.is_set = True
        replay.resume(self)

    def _unset(self) -> None:
        self.is_set = False

    def _recorded_on_tape(
        self, name: str, stream: torch.Stream | None, action: Callable[[], None]
    ) -> bool:
        with StreamContext(stream):
            tape = current_tape()
            if tape is not None:
                tape.append(name, [], action)
        return tape is not None


def _named(stream: torch.Stream) -> Stream:
    """``stream`` as the class that ``torch.npu`` hands out."""
    return Stream(
        stream_id=stream.stream_id,
        device_index=stream.device_index,
        device_type=stream.device_type,
    )


def current_stream(device: DeviceLike = None) -> Stream:
    return _named(torch._C._accelerator_getStream(device_index(device)))


def default_stream(device: DeviceLike = None) -> Stream:
    index = device_index(device)
    kind = torch._C._accelerator_getStream(index).device_type
    return Stream(stream_id=0, device_index=index, device_type=kind)


def set_stream(stream: torch.Stream | None) -> None:
    """Make ``stream`` current on its device and thread; nothing for None."""
    if stream is None:
        return
    # torch.accelerator.set_stream would also change the current device, as torch.npu's does not.
    with_device = torch._C._accelerator_getDeviceIndex()
    torch._C._accelerator_setStream(stream)
    torch._C._accelerator_setDeviceIndex(with_device)


class StreamContext:
    """Context in which ``stream`` (None: no change) and its device are current."""

    def __init__(self, stream: torch.Stream | None) -> None:
        self.stream = stream
        self._outer = contextlib.ExitStack()

    def __enter__(self) -> torch.Stream | None:
        if self.stream is not None:
            self._outer.enter_context(_exchanged(self.stream))
        return self.stream

    def __exit__(self, *exception: object) -> None:
        self._outer.close()


@contextlib.contextmanager
def _exchanged(stream: torch.Stream) -> Iterator[None]:
    outer_device = torch._C._accelerator_getDeviceIndex()
    outer_stream = current_stream(stream.device_index)
    torch._C._accelerator_setStream(stream)
    try:
        yield
    finally:
        torch._C._accelerator_setStream(outer_stream)
        torch._C._accelerator_setDeviceIndex(outer_device)


def stream(stream: torch.Stream | None) -> StreamContext:
    """``with torch.npu.stream(stream):``"""
    return StreamContext(stream)


def current_blas_handle() -> int:
    return 0
