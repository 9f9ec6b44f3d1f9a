# SPDX-License-Identifier: Apache-2.0
"""Memory of a pool with an allocator of its user's own: ``torch.npu.memory.MemPool``.

vllm-ascend's sleep mode allocates weights and caches in such pools. Its allocator is a library that
links CANN, so it is not loaded; what it does is done here. It is told of each block, as torch_npu's
allocator tells it of each segment, and can take the memory behind a block's address away, and give
it some again. What lay there is overwritten with NaN (0xFF) then, as nobody may rely on it.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
from collections.abc import Callable, Iterator
from typing import Any

import torch

from emulated_npu.device.devices import DeviceLike

Handle = tuple[int, int, int, int]
"""Device, bytes and address of a block; a name for its memory, which is the address again."""
BLOCK_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_int32, ctypes.c_int64, ctypes.c_int64)
NOBODY = BLOCK_CALLBACK()


class NPUPluggableAllocator:
    """An allocator of the user's own, in a library.

    Args:
        path_to_so_file: the library, which is not loaded.
        alloc_fn_name: its function that allocates.
        free_fn_name: its function that frees.
    """

    def __init__(
        self, path_to_so_file: str | None = None, alloc_fn_name: str = "", free_fn_name: str = ""
    ) -> None:
        self._allocator = (path_to_so_file, alloc_fn_name, free_fn_name)

    def allocator(self) -> Any:
        """What a pool is made with."""
        return self._allocator


class MemPool:
    """A pool; what is allocated in it is known to the allocator that was plugged in."""

    def __init__(self, allocator: Any = None, **_options: Any) -> None:
        if allocator is None:
            raise NotImplementedError(
                "emulated NPU has no torch.npu.memory.MemPool without an allocator of its own; "
                "graphs have pools by themselves"
            )
        self.allocator = allocator


@contextlib.contextmanager
def use_mem_pool(pool: MemPool, device: DeviceLike = None) -> Iterator[None]:
    """What this thread allocates in the block belongs to the pool, on whichever device."""
    use = plugged.device.emulated_npu_use_mem_pool
    outside = use(1)
    try:
        yield
    finally:
        use(outside)


class PluggedAllocator:
    """What vllm-ascend's library offers to Python: it tells of blocks, maps and unmaps them.

    ``device``: the native device, which has the blocks; ``native`` gives it.
    """

    device: ctypes.CDLL

    def __init__(self) -> None:
        self._callbacks: tuple[Any, Any] = (NOBODY, NOBODY)

    def init_module(
        self, allocated: Callable[[Handle], None], freed: Callable[[int], Handle]
    ) -> None:
        """From now on tell of each block that a pool gets and gives back."""

        def tell_allocated(device: int, size: int, address: int) -> None:
            allocated((device, size, address, address))

        def tell_freed(_device: int, _size: int, address: int) -> None:
            freed(address)

        if self._callbacks == (NOBODY, NOBODY):
            # Blocks outlive the interpreter, which cannot be told of them then.
            atexit.register(self.device.emulated_npu_set_block_callbacks, NOBODY, NOBODY)
        callbacks = (BLOCK_CALLBACK(tell_allocated), BLOCK_CALLBACK(tell_freed))
        self.device.emulated_npu_set_block_callbacks(*callbacks)
        self._callbacks = callbacks  # kept alive for the device

    @staticmethod
    def python_create_and_map(_device: int, _size: int, address: int, _memory: int) -> None:
        """Give a block memory again. Raises torch.OutOfMemoryError when there is none."""
        torch.ops.emulated_npu.map_block(address)

    @staticmethod
    def python_unmap_and_release(_device: int, _size: int, address: int, _memory: int) -> None:
        """Take a block's memory away: it is free, and what lay there is gone."""
        torch.ops.emulated_npu.unmap_block(address)


plugged = PluggedAllocator()
