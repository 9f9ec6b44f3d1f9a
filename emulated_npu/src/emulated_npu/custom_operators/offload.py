# SPDX-License-Identifier: Apache-2.0
"""Copies of blocks between device and host memory, by address."""

from __future__ import annotations

import ctypes

import torch

from emulated_npu import counters
from emulated_npu.operators.registry import operator
from emulated_npu.operators.requirements import require, require_dtype, require_shape

DIRECTIONS: tuple[counters.Direction, ...] = ("to_device", "to_host")
"""By the operator's number of a direction."""


@operator(
    "swap_blocks_batch",
    namespace="_C_ascend",
    source="vllm-ascend: definition of swap_blocks_batch; its callers in simple_kv_offload",
    limits="x, y, z int64 of one length; direction 0 (host to device) or 1 (device to host). "
    "Addresses are not checked.",
    missing="direction 2 (device to device)",
    host_arguments=("x", "y", "z"),
)
def swap_blocks_batch(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor, direction: int) -> None:
    """Copy z[i] bytes from address x[i] to address y[i], for every i."""
    if direction == 2:
        raise NotImplementedError(
            "emulated NPU has no torch.ops._C_ascend.swap_blocks_batch from device to device"
        )
    for source, destination, size in zip(x.tolist(), y.tolist(), z.tolist(), strict=True):
        ctypes.memmove(destination, source, size)
    counters.record_copy(DIRECTIONS[direction], int(z.sum()))


@swap_blocks_batch.check
def _check_swap_blocks_batch(
    x: torch.Tensor, y: torch.Tensor, z: torch.Tensor, direction: int
) -> None:
    for name, tensor in (("x", x), ("y", y), ("z", z)):
        require_dtype(name, tensor, (torch.int64,))
        require_shape(name, tensor, (x.numel(),))
    require(0 <= direction <= 2, f"direction is {direction}; it must be 0, 1 or 2")
    require(bool((z >= 0).all()), "z has a negative number of bytes")
