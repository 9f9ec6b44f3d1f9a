# SPDX-License-Identifier: Apache-2.0
"""Checks of arguments, shared by all ops: what was asked, what is possible, what to change."""

from __future__ import annotations

from collections.abc import Sequence

import torch

INDEX_DTYPES = (torch.int32, torch.int64)


def require(holds: bool, op: str, message: str) -> None:
    """Raise ValueError with the op's name in front of the message unless ``holds``."""
    if not holds:
        raise ValueError(f"mkv_ascend::{op}: {message}")


def require_tensor(
    op: str,
    name: str,
    tensor: torch.Tensor,
    dtypes: Sequence[torch.dtype],
    shape: Sequence[int | None],
) -> None:
    """Refuse another dtype, another shape (None: any size), or elements of a row that lie apart.

    Only the last dimension must be dense: rows may lie apart, as in a view of a larger buffer.
    """
    if tensor.dtype not in dtypes:
        allowed = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        given = str(tensor.dtype).removeprefix("torch.")
        require(False, op, f"{name} is {given}; it must be {allowed}")
    fits = tensor.dim() == len(shape) and all(
        wanted is None or size == wanted for size, wanted in zip(tensor.shape, shape, strict=True)
    )
    if not fits:
        words = ", ".join("any" if wanted is None else str(wanted) for wanted in shape)
        require(False, op, f"{name} has the shape {tuple(tensor.shape)}; it must be ({words})")
    if tensor.dim() > 0 and tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
        require(
            False,
            op,
            f"{name} has the strides {tuple(tensor.stride())}; its last dimension must be dense "
            "(stride 1): call contiguous() or take another view",
        )


def require_one_device(op: str, tensors: Sequence[tuple[str, torch.Tensor]]) -> None:
    """Refuse tensors that do not all lie on the device of the first."""
    first_name, first = tensors[0]
    for name, tensor in tensors[1:]:
        if tensor.device != first.device:
            require(
                False,
                op,
                f"{name} is on {tensor.device}, {first_name} on {first.device}; all tensors must "
                "be on one device",
            )


def require_groups(
    op: str, block_tables: Sequence[torch.Tensor], group_table: torch.Tensor
) -> None:
    """Refuse block tables and a group table that do not describe the same KV groups."""
    require(bool(block_tables), op, "block_tables is empty; it must hold one for each KV group")
    for index, table in enumerate(block_tables):
        require_tensor(op, f"block_tables[{index}]", table, (torch.int32,), (None, None))
        require(
            table.shape[1] > 0,
            op,
            f"block_tables[{index}] has the shape {tuple(table.shape)}; it must have a column",
        )
    require_tensor(op, "group_table", group_table, (torch.int64,), (len(block_tables), 4))


def require_model_length(op: str, max_model_len: int) -> None:
    """Refuse a maximum length that is not positive, or beyond what int32 positions can count."""
    require(
        0 < max_model_len < 2**31,
        op,
        f"max_model_len is {max_model_len}; it must be 1 to {2**31 - 1}",
    )


def require_dense(op: str, name: str, tensor: torch.Tensor, first: int, what: str) -> None:
    """Refuse a tensor whose dimensions from ``first`` on have gaps between their elements."""
    dense = 1
    for size, stride in zip(
        reversed(tensor.shape[first:]), reversed(tensor.stride()[first:]), strict=True
    ):
        if size != 1 and stride != dense:
            require(
                False,
                op,
                f"{name} has the strides {tuple(tensor.stride())}; {what} must be dense",
            )
        dense *= size
