# SPDX-License-Identifier: Apache-2.0
"""torch_npu.multiprocessing.reductions: a tensor of the device that another process opens.

torch_npu hands out a handle of the memory, and who opens it maps that memory. Here the opener
copies what the memory holds in that moment, as the memory of another process cannot be mapped:
what is written later, on either side, the other does not see. The handle keeps nothing alive, there
as here. Source: ``torch.multiprocessing.reductions`` for CUDA, whose arguments torch_npu's have.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import Any

import torch
from torch.multiprocessing import reductions

from emulated_npu.device.native import cpu_alias

PR_SET_PTRACER, ANY_PROCESS = 0x59616D61, ctypes.c_ulong(-1)
"""Linux: any process of this user may read this one's memory (prctl(2), Yama)."""

Rebuild = tuple[Callable[..., torch.Tensor], tuple[Any, ...]]
_of_host_tensors = reductions.reduce_tensor


def install() -> None:
    """Let torch's ``reduce_tensor`` serve tensors of the device, as importing torch_npu does."""
    reductions.reduce_tensor = reduce_tensor


def reduce_tensor(tensor: torch.Tensor) -> Rebuild:
    """What makes the tensor in another process: a function and its arguments."""
    if tensor.device.type != "npu":
        return _of_host_tensors(tensor)
    ctypes.CDLL(None).prctl(PR_SET_PTRACER, ANY_PROCESS, 0, 0, 0)
    storage = tensor.untyped_storage()
    handle = f"{os.getpid()}:{storage.data_ptr()}".encode()
    where = (handle, storage.nbytes(), 0)
    of_its_events = (b"", 0, b"", False)
    return rebuild_npu_tensor, (
        *(type(tensor), tensor.size(), tensor.stride(), tensor.storage_offset()),
        *(torch.storage.TypedStorage, tensor.dtype, tensor.device.index),
        *(*where, tensor.requires_grad, *of_its_events),
    )


def rebuild_npu_tensor(
    tensor_cls: type[torch.Tensor],
    tensor_size: torch.Size,
    tensor_stride: tuple[int, ...],
    tensor_offset: int,
    storage_cls: type,
    dtype: torch.dtype,
    storage_device: int,
    storage_handle: bytes,
    storage_size_bytes: int,
    storage_offset_bytes: int,
    requires_grad: bool,
    *_of_its_events: object,
) -> torch.Tensor:
    """The tensor on ``storage_device``, with what its memory holds now.

    Raises:
        OSError: the process that handed it out is gone, or may not be read.
    """
    device = torch.device("npu", storage_device)
    memory = torch.empty(storage_size_bytes, dtype=torch.uint8, device=device)
    process, address = map(int, storage_handle.split(b":"))
    with open(f"/proc/{process}/mem", "rb", buffering=0) as file:
        file.seek(address + storage_offset_bytes)
        view = cpu_alias(memory).numpy().data
        while view:
            view = view[file.readinto(view) or _cut_short(process) :]
    whole = memory[: len(memory) // dtype.itemsize * dtype.itemsize].view(dtype)
    tensor = whole.as_strided(tensor_size, tensor_stride, tensor_offset)
    return tensor.requires_grad_(requires_grad)


def _cut_short(process: int) -> int:
    raise OSError(f"emulated NPU: the memory of process {process} ends before the tensor does")
