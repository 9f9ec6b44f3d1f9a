# SPDX-License-Identifier: Apache-2.0
"""Exact counters of what a program asks of the emulated device.

The emulator cannot say how fast a program is on hardware. It can say how many operators a program
launches, how often and where the host waits for the device, and how many bytes cross. All of this
depends on the program only and is the same on every run.

ATen operators are counted by the native device (see csrc/counters.h); operators written in
Python call ``record_launch`` themselves. ``snapshot()`` joins both.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeVar

from emulated_npu import faults
from emulated_npu.call_place import calling_place

Direction = Literal["to_device", "to_host"]
Value = TypeVar("Value")


@dataclass(frozen=True)
class CounterSnapshot:
    """Counts since the last reset, or between two snapshots when subtracted.

    launches: operator name -> number of launches by the host; a replay of a graph is one.
    graph_launches: operator name -> number of launches by replayed graphs.
    host_reads: ``file:line`` -> (times, bytes) that the host waited for device memory there.
    asynchronous_reads: the same for non-blocking copies into pinned memory, which wait for nothing.
    bytes_to_device, bytes_to_host: bytes copied each way.
    peak_memory: device index -> most bytes in use at once since the peak was reset. A peak is not a
        count: the difference of two snapshots keeps the later snapshot's peaks.
    """

    launches: Mapping[str, int] = field(default_factory=dict)
    graph_launches: Mapping[str, int] = field(default_factory=dict)
    host_reads: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    asynchronous_reads: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    bytes_to_device: int = 0
    bytes_to_host: int = 0
    peak_memory: Mapping[int, int] = field(default_factory=dict)

    @property
    def total_launches(self) -> int:
        return sum(self.launches.values())

    @property
    def total_host_reads(self) -> int:
        return sum(times for times, _ in self.host_reads.values())

    def __sub__(self, earlier: CounterSnapshot) -> CounterSnapshot:
        if not isinstance(earlier, CounterSnapshot):
            return NotImplemented
        return CounterSnapshot(
            launches=_subtract_counts(self.launches, earlier.launches),
            graph_launches=_subtract_counts(self.graph_launches, earlier.graph_launches),
            host_reads=_subtract_reads(self.host_reads, earlier.host_reads),
            asynchronous_reads=_subtract_reads(self.asynchronous_reads, earlier.asynchronous_reads),
            bytes_to_device=self.bytes_to_device - earlier.bytes_to_device,
            bytes_to_host=self.bytes_to_host - earlier.bytes_to_host,
            peak_memory=dict(self.peak_memory),
        )


def _subtract_counts(later: Mapping[str, int], earlier: Mapping[str, int]) -> dict[str, int]:
    differences = {name: count - earlier.get(name, 0) for name, count in later.items()}
    return {name: difference for name, difference in differences.items() if difference}


def _subtract_reads(
    later: Mapping[str, tuple[int, int]], earlier: Mapping[str, tuple[int, int]]
) -> dict[str, tuple[int, int]]:
    difference = {}
    for place, (times, num_bytes) in later.items():
        times_before, bytes_before = earlier.get(place, (0, 0))
        if times != times_before:
            difference[place] = (times - times_before, num_bytes - bytes_before)
    return difference


class DeviceCounters(Protocol):
    """What the native device adds; registered by ``emulated_npu.device.install``."""

    def launches(self) -> dict[str, int]: ...

    def graph_launches(self) -> dict[str, int]: ...

    def copied_bytes(self) -> tuple[int, int]: ...

    def peak_memory(self) -> dict[int, int]: ...

    def reset(self) -> None: ...


class _Reads:
    """Times and bytes per place."""

    def __init__(self) -> None:
        self.times: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()

    def add(self, place: str, num_bytes: int) -> None:
        self.times[place] += 1
        self.bytes[place] += num_bytes

    def as_dict(self) -> dict[str, tuple[int, int]]:
        return {place: (times, self.bytes[place]) for place, times in self.times.items()}


class _State:
    def __init__(self) -> None:
        self.device: DeviceCounters | None = None
        self.clear()

    def clear(self) -> None:
        # A new lock each time: after a fork a thread that no longer exists may hold the old one.
        self.lock = threading.Lock()
        self.launches: Counter[str] = Counter()
        self.graph_launches: Counter[str] = Counter()
        self.host_reads = _Reads()
        self.asynchronous_reads = _Reads()
        self.copied: Counter[str] = Counter()


_state = _State()


def attach_device(device: DeviceCounters) -> None:
    """Let snapshots include what the native device counted."""
    _state.device = device


def record_launch(name: str) -> None:
    """Count one launch of an operator that Python implements."""
    faults.launched(name)
    with _state.lock:
        _state.launches[name] += 1


def record_graph_launch(name: str) -> None:
    """Count one launch, by a replayed graph, of an operator that Python implements."""
    faults.launched(name)
    with _state.lock:
        _state.graph_launches[name] += 1


def record_host_read(num_bytes: int, asynchronous: bool = False) -> None:
    """Count one read of device memory by the host, at the place in the program that asked for it.

    asynchronous: the host did not wait (a non-blocking copy into pinned memory).
    """
    place = calling_place()
    with _state.lock:
        reads = _state.asynchronous_reads if asynchronous else _state.host_reads
        reads.add(place, num_bytes)


def record_copy(direction: Direction, num_bytes: int) -> None:
    """Count bytes copied ``"to_device"`` or ``"to_host"`` by an operator that Python implements."""
    if direction not in ("to_device", "to_host"):
        raise ValueError(f"direction {direction!r}; allowed: 'to_device', 'to_host'")
    with _state.lock:
        _state.copied[direction] += num_bytes


def snapshot() -> CounterSnapshot:
    """All counts since the last reset."""
    device = _state.device
    with _state.lock:
        launches = Counter(_state.launches)
        graph_launches = Counter(_state.graph_launches)
        host_reads = _state.host_reads.as_dict()
        asynchronous_reads = _state.asynchronous_reads.as_dict()
        to_device, to_host = _state.copied["to_device"], _state.copied["to_host"]
    peak_memory: dict[int, int] = {}
    if device is not None:
        launches.update(device.launches())
        graph_launches.update(device.graph_launches())
        device_to, device_from = device.copied_bytes()
        to_device, to_host = to_device + device_to, to_host + device_from
        peak_memory = device.peak_memory()
    return CounterSnapshot(
        launches=dict(sorted(launches.items())),
        graph_launches=dict(sorted(graph_launches.items())),
        host_reads=dict(sorted(host_reads.items())),
        asynchronous_reads=dict(sorted(asynchronous_reads.items())),
        bytes_to_device=to_device,
        bytes_to_host=to_host,
        peak_memory=peak_memory,
    )


def reset() -> None:
    """Start all counts at zero, and peaks at what is in use now."""
    _state.clear()
    if _state.device is not None:
        _state.device.reset()


# What the parent did is in the parent's report.
os.register_at_fork(after_in_child=reset)


def report(counts: CounterSnapshot | None = None) -> str:
    """The counts as text, most frequent first; of this process when ``counts`` is not given."""
    counts = snapshot() if counts is None else counts
    lines = [
        f"emulated NPU: {counts.total_launches} launches, {counts.total_host_reads} host reads, "
        f"{counts.bytes_to_device} bytes to device, {counts.bytes_to_host} bytes to host"
    ]
    lines += [
        f"  peak memory npu:{device}: {peak} bytes"
        for device, peak in counts.peak_memory.items()
        if peak
    ]
    for title, launches in (
        ("launches", counts.launches),
        ("launches by graphs", counts.graph_launches),
    ):
        lines += _section(title, launches, key=lambda count: count, show=str)
    for title, reads in (
        ("host reads", counts.host_reads),
        ("asynchronous reads", counts.asynchronous_reads),
    ):
        lines += _section(
            title, reads, key=lambda read: read[0], show=lambda read: f"{read[0]} ({read[1]} bytes)"
        )
    return "\n".join(lines) + "\n"


def _section(
    title: str,
    values: Mapping[str, Value],
    key: Callable[[Value], int],
    show: Callable[[Value], str],
) -> list[str]:
    if not values:
        return []
    ordered = sorted(values.items(), key=lambda item: (-key(item[1]), item[0]))
    return [f"  {title}:"] + [f"    {name}: {show(value)}" for name, value in ordered]
