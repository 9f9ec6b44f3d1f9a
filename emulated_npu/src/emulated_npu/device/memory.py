# SPDX-License-Identifier: Apache-2.0
"""Memory of ``torch.npu``: what is in use, its peak and its limit.

The numbers come from the native device's ledger (csrc/memory_ledger.h), through the same
interface that ``torch.accelerator`` uses; not through ``torch.accelerator`` itself, because
vllm-ascend replaces its functions by those of ``torch.npu``. Freed memory goes back at once, so
"reserved" equals "allocated" and there is no cache to empty. All sizes in bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from emulated_npu.device.devices import DeviceLike, device_index
from emulated_npu.device.memory_pools import MemPool, NPUPluggableAllocator, use_mem_pool

__all__ = [
    "MemPool",
    "NPUPluggableAllocator",
    "empty_cache",
    "ipc_collect",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "memory_snapshot",
    "memory_stats",
    "reset_max_memory_allocated",
    "reset_peak_memory_stats",
    "use_mem_pool",
]


def empty_cache() -> None:
    """Does nothing: freed memory is not kept."""


def ipc_collect() -> None:
    """Does nothing: device memory is not shared between processes."""


def mem_get_info(device: DeviceLike = None) -> tuple[int, int]:
    """``(free, total)`` of the device, as this process sees it."""
    return torch._C._accelerator_getMemoryInfo(device_index(device))


def memory_stats(device: DeviceLike = None) -> dict[str, int]:
    """Statistics by the names that ``torch.cuda.memory_stats`` uses, for instance
    ``allocated_bytes.all.current``, ``allocated_bytes.all.peak`` and ``num_ooms``."""
    return dict(_flatten("", torch._C._accelerator_getDeviceStats(device_index(device))))


def _flatten(prefix: str, values: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    for name, value in sorted(values.items()):
        if isinstance(value, Mapping):
            yield from _flatten(f"{prefix}{name}.", value)
        else:
            yield prefix + name, value


def memory_allocated(device: DeviceLike = None) -> int:
    return memory_stats(device)["allocated_bytes.all.current"]


def max_memory_allocated(device: DeviceLike = None) -> int:
    return memory_stats(device)["allocated_bytes.all.peak"]


def memory_reserved(device: DeviceLike = None) -> int:
    return memory_stats(device)["reserved_bytes.all.current"]


def max_memory_reserved(device: DeviceLike = None) -> int:
    return memory_stats(device)["reserved_bytes.all.peak"]


def reset_peak_memory_stats(device: DeviceLike = None) -> None:
    torch._C._accelerator_resetPeakStats(device_index(device))


reset_max_memory_allocated = reset_peak_memory_stats


def memory_snapshot(*arguments: Any) -> list[Any]:
    raise NotImplementedError(
        "emulated NPU has no torch.npu.memory_snapshot: it does not keep a list of blocks; "
        "use torch.npu.memory_stats()"
    )
