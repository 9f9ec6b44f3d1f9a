# SPDX-License-Identifier: Apache-2.0
"""Loads the native device (emulated_npu/csrc) and names what it offers to Python."""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path
from typing import Any

import torch

from emulated_npu import counters, faults, unwritten, variables
from emulated_npu.call_place import calling_place
from emulated_npu.device import host_waits, memory
from emulated_npu.device.devices import device_count
from emulated_npu.device.memory_pools import plugged
from emulated_npu.settings import EmulatorSettings

LIBRARY = Path(__file__).resolve().parent.parent / "_native.so"


class NativeDeviceMissing(ImportError):
    """The native part of the emulated NPU is not built, or does not fit the installed torch."""


@functools.lru_cache(maxsize=1)
def _load() -> Any:
    """``torch.ops.emulated_npu``, after loading the library. Raises NativeDeviceMissing."""
    build = (
        "Build it with `pip install --no-build-isolation -e ./emulated_npu` in a clone of "
        "mkv_ascend (needs g++, cmake and torch)."
    )
    if not LIBRARY.exists():
        raise NativeDeviceMissing(f"the emulated NPU is not built: no file {LIBRARY}. {build}")
    try:
        torch.ops.load_library(str(LIBRARY))
    except OSError as error:
        raise NativeDeviceMissing(
            f"{LIBRARY} does not load into torch {torch.__version__}; it was probably built for "
            f"another torch: {error}. {build}"
        ) from error
    return torch.ops.emulated_npu


def initialize(settings: EmulatorSettings) -> None:
    """Register the device with PyTorch. Once per process, before its first tensor."""
    _load().initialize(settings.devices, settings.memory_bytes, settings.strict)
    _load().set_fills(*unwritten.fills())
    _connect_callbacks()
    counters.attach_device(_DeviceCounters())


def set_strict(strict: bool) -> None:
    """Switch the refusal of mixed devices; for tests, which cannot start a process per mode."""
    _load().set_strict(strict)


def cpu_alias(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of an npu tensor as a CPU tensor, without a copy.

    Same shape, strides and dtype; the npu memory lives as long as the alias. A tensor of another
    device comes back unchanged. This is not a host read: it is for kernels of the emulated device.
    """
    return _load().cpu_alias(tensor)


def npu_alias(tensor: torch.Tensor, device_index: int | None = None) -> torch.Tensor:
    """A CPU tensor as an npu tensor, without a copy.

    An alias or view of an npu tensor (made through ``cpu_alias``) finds its npu memory again. Any
    other memory becomes device memory of ``device_index`` (None: the current device) and is charged
    while it lives; raises torch.OutOfMemoryError when it does not fit. A tensor of another device
    comes back unchanged.
    """
    return _load().npu_alias(tensor, -1 if device_index is None else device_index)


def scratch_alias(tensor: torch.Tensor) -> torch.Tensor:
    """``cpu_alias`` of an operand that a kernel may write.

    Where the current stream records, over scratch memory, unless the operand was made while
    recording: recording changes nothing that was there before.
    """
    return _load().scratch_alias(tensor)


def weak_reference(tensor: torch.Tensor) -> torch.Tensor:
    """The same npu memory as another tensor, which does not keep it alive.

    Once it is freed, it reads as NaN or -1; memory of a graph's pool, as what the next graph of the
    pool leaves there.
    """
    return _load().weak_reference(tensor)


def tapes() -> Any:
    """What emulated_npu/csrc/graph_library.cpp offers, for ``emulated_npu.recording``."""
    return _load()


def default_generator(device_index: int) -> torch.Generator:
    """The generator that operators of the device use when they are given none."""
    return _load().default_generator(device_index)


@ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int32)
def _on_host_read(num_bytes: int, asynchronous: int) -> None:
    counters.record_host_read(num_bytes, asynchronous=bool(asynchronous))


@ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)
def _tell_place(text: int, capacity: int) -> None:
    place = calling_place().encode()[: capacity - 1]
    ctypes.memmove(text, place, len(place))


@ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int64)
def _wait_for_tail(tape: int) -> int:
    return int(host_waits.wait_for(tape))


def _connect_callbacks() -> None:
    library = ctypes.CDLL(str(LIBRARY))
    library.emulated_npu_set_host_read_callback(_on_host_read)
    library.emulated_npu_set_place_callback(_tell_place)
    library.emulated_npu_set_wait_callback(_wait_for_tail)
    plugged.device = library
    if asked := variables.FAULTS.get():
        faults.install(Path(asked), library)


class _DeviceCounters:
    """What the native device counted, for ``emulated_npu.counters``."""

    def launches(self) -> dict[str, int]:
        return dict(_load().launches())

    def graph_launches(self) -> dict[str, int]:
        return dict(_load().graph_launches())

    def copied_bytes(self) -> tuple[int, int]:
        return _load().copied_bytes()

    def peak_memory(self) -> dict[int, int]:
        return {index: memory.max_memory_allocated(index) for index in range(device_count())}

    def reset(self) -> None:
        _load().reset_counts()
        for index in range(device_count()):
            memory.reset_peak_memory_stats(index)
