# SPDX-License-Identifier: Apache-2.0
"""Integers of 4 bits, eight of them in an int32."""

from __future__ import annotations

import torch

from emulated_npu.operators.registry import operator
from emulated_npu.operators.requirements import (
    require,
    require_contiguous,
    require_dtype,
    require_multiple,
    require_rank,
)

IN_INT32 = 8
BITS = 4
LOWEST, HIGHEST = -8, 7
CARRIER = torch.int32


def pack(values: torch.Tensor) -> torch.Tensor:
    """int32 (..., n / 8) that holds the integers (..., n), each from -8 to 7.

    The first of eight has the lowest bits; each is in two's complement.
    """
    eights = (values.to(torch.int64) & 0xF).unflatten(-1, (-1, IN_INT32))
    # The sum has 32 bits without a sign, and int32 keeps them as they are.
    return (eights << _shifts()).sum(-1).to(CARRIER)


def unpack(packed: torch.Tensor) -> torch.Tensor:
    """int8 (..., n) of the integers that int32 (..., n / 8) holds."""
    nibbles = (packed.unsqueeze(-1) >> _shifts()) & 0xF
    # 8 to 15 stand for -8 to -1.
    return ((nibbles ^ 8) - 8).to(torch.int8).flatten(-2)


def _shifts() -> torch.Tensor:
    return torch.arange(0, BITS * IN_INT32, BITS)


def is_packed_along_rows(packed: torch.Tensor) -> bool:
    """Whether a matrix (k / 8, n) is the transpose of one that was packed as (n, k / 8).

    torch_npu tells by strides alone. A matrix of one element counts as transposed.
    """
    return packed.stride(-2) == 1 and packed.stride(-1) == packed.shape[-2]


def matrix_shape(packed: torch.Tensor) -> tuple[int, ...]:
    """The shape (..., k, n) of the integers of a packed matrix: (..., k, n / 8) or transposed."""
    *batch, rows, columns = packed.shape
    if is_packed_along_rows(packed):
        return (*batch, rows * IN_INT32, columns)
    return (*batch, rows, columns * IN_INT32)


def unpack_matrix(packed: torch.Tensor) -> torch.Tensor:
    """int8 (..., k, n) of a packed matrix: (..., k, n / 8), or (..., n, k / 8) transposed."""
    if is_packed_along_rows(packed):
        return unpack(packed.transpose(-1, -2)).transpose(-1, -2)
    return unpack(packed)


def require_packed_matrix(name: str, packed: torch.Tensor) -> None:
    """Refuse a packed matrix that is neither contiguous nor the transpose of a contiguous one."""
    require(
        packed.is_contiguous() or packed.transpose(-1, -2).is_contiguous(),
        f"{name} (shape {tuple(packed.shape)}, strides {packed.stride()}) holds int4; it must be "
        f"contiguous, or the transpose of what is contiguous",
    )


@operator(
    "npu_convert_weight_to_int4pack",
    source="op-plugin docs: torch_npu.npu_convert_weight_to_int4pack; its unit test for the order "
    "within an int32",
    limits="weight int32 of 2 dimensions, contiguous, not empty, its last size a multiple of 8, "
    "its numbers from -8 to 7. inner_k_tiles is reserved and ignored. The format stays ND.",
)
def npu_convert_weight_to_int4pack(weight: torch.Tensor, inner_k_tiles: int = 0) -> torch.Tensor:
    """int32 (k, n / 8) that holds weight (k, n): eight columns in each, the first lowest.

    The documentation says that a number outside of -8 to 7 is not allowed; its lowest 4 bits count.
    """
    return pack(weight)


@npu_convert_weight_to_int4pack.check
def _check_convert(weight: torch.Tensor) -> None:
    require_dtype("weight", weight, (CARRIER,))
    require_rank("weight", weight, 2)
    require_contiguous("weight", weight)
    require(weight.numel() > 0, f"weight is empty (shape {tuple(weight.shape)})")
    require_multiple("weight's last size", weight.shape[-1], IN_INT32)
    low, high = weight.min().item(), weight.max().item()
    require(
        low >= LOWEST and high <= HIGHEST,
        f"weight has numbers from {low} to {high}; int4 holds {LOWEST} to {HIGHEST}",
    )
