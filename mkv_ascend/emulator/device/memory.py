# SPDX-License-Identifier: Apache-2.0
"""Memory of ``torch.npu``: what is in use, its peak and its limit.

The numbers come from the native device's ledger (csrc/emulator/memory_ledger.h), through the same
interface that ``torch.accelerator`` uses. Freed memory goes back at once, so "reserved" equals
"allocated" and there is no cache to empty. All sizes in bytes.
"""

from __future__ import annotations

from typing import Any

import torch

from mkv_ascend.emulator.device.devices import DeviceLike, device_index


def empty_cache() -> None:
    """Does nothing: freed memory is not kept."""


def ipc_collect() -> None:
    """Does nothing: device memory is not shared between processes."""


def mem_get_info(device: DeviceLike = None) -> tuple[int, int]:
    """``(free, total)`` of the device, as this process sees it."""
    return torch.accelerator.get_memory_info(device_index(device))


def memory_stats(device: DeviceLike = None) -> dict[str, Any]:
    """The statistics of ``torch.accelerator.memory_stats``, for instance
    ``allocated_bytes.all.current`` and ``allocated_bytes.all.peak``."""
    return torch.accelerator.memory_stats(device_index(device))


def memory_allocated(device: DeviceLike = None) -> int:
    return torch.accelerator.memory_allocated(device_index(device))


def max_memory_allocated(device: DeviceLike = None) -> int:
    return torch.accelerator.max_memory_allocated(device_index(device))


def memory_reserved(device: DeviceLike = None) -> int:
    return torch.accelerator.memory_reserved(device_index(device))


def max_memory_reserved(device: DeviceLike = None) -> int:
    return torch.accelerator.max_memory_reserved(device_index(device))


def reset_peak_memory_stats(device: DeviceLike = None) -> None:
    torch.accelerator.reset_peak_memory_stats(device_index(device))


reset_max_memory_allocated = reset_peak_memory_stats


def memory_snapshot(*arguments: Any) -> list[Any]:
    raise NotImplementedError(
        "emulated NPU has no torch.npu.memory_snapshot: it does not keep a list of blocks; "
        "use torch.npu.memory_stats()"
    )


class MemPool:
    """Private memory pools (sleep mode, graphs) are not emulated."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        raise NotImplementedError(
            "emulated NPU has no torch.npu.memory.MemPool; run without sleep mode"
        )


class NPUPluggableAllocator:
    """A replaced device allocator (sleep mode) is not emulated."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        raise NotImplementedError(
            "emulated NPU has no torch.npu.memory.NPUPluggableAllocator; run without sleep mode"
        )


def use_mem_pool(pool: MemPool, device: DeviceLike = None) -> Any:
    raise NotImplementedError(
        "emulated NPU has no torch.npu.memory.use_mem_pool; run without sleep mode"
    )
