# SPDX-License-Identifier: Apache-2.0
"""KV groups as a device reads them, and the slots of positions in them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

PADDING_SLOT = -1

ADDRESS, ROW_STRIDE, COLUMNS, BLOCK_SIZE = range(4)
"""Columns of a group table."""


def group_table(block_tables: Sequence[torch.Tensor], block_sizes: Sequence[int]) -> torch.Tensor:
    """Describe block tables to a kernel. Made once: a copy to the device, not for the hot path.

    The block tables must stay where they are for as long as the result is used.

    Args:
        block_tables: one int32 [rows, columns] per KV group, ids of kernel blocks, on one device.
        block_sizes: tokens in a kernel block, per group; 1 or more.

    Returns:
        int64 [groups, 4] on the block tables' device: address, row stride in elements, columns,
        block size.

    Raises:
        ValueError: another number of sizes than of tables, a size below 1, or a wrong table.
    """
    if len(block_tables) != len(block_sizes) or not block_tables:
        raise ValueError(
            f"group_table: {len(block_tables)} block_tables and {len(block_sizes)} block_sizes; "
            "there must be one of each per KV group, and a group"
        )
    rows = []
    for index, (table, size) in enumerate(zip(block_tables, block_sizes, strict=True)):
        if table.dtype != torch.int32 or table.dim() != 2 or table.stride(1) != 1:
            raise ValueError(
                f"group_table: block_tables[{index}] is {table.dtype} {tuple(table.shape)} with "
                f"strides {table.stride()}; it must be int32 [rows, columns], rows dense"
            )
        if size != int(size) or size < 1:
            raise ValueError(
                f"group_table: block_sizes[{index}] is {size}; it must be a whole number from 1 on"
            )
        rows.append([table.data_ptr(), table.stride(0), table.shape[1], size])
    return torch.tensor(rows, dtype=torch.int64, device="cpu").to(block_tables[0].device)


def slots_of(
    positions: torch.Tensor,
    requests: torch.Tensor,
    written: torch.Tensor,
    block_table: torch.Tensor,
    block_size: torch.Tensor,
) -> torch.Tensor:
    """Slots of tokens in one KV group, in plain torch operations.

    Block id 0, vLLM's null block, is an id like any other, as in vLLM and vllm-ascend: nobody
    reads what is written there.

    Args:
        positions: int64, any shape; of each token in its sequence.
        requests: int64, broadcasts to it; each token's row of the block table.
        written: bool, same shape; False: the token has no slot.
        block_table: int32 [rows, columns].
        block_size: int64 scalar tensor.

    Returns:
        int64, the shape of ``positions``: ``block_id * block_size + offset``, -1 where the token is
        not written, or its position or request lies outside the block table.
    """
    num_rows, num_columns = block_table.shape
    column = torch.div(positions, block_size, rounding_mode="floor")
    requests = requests.expand_as(positions)
    inside = (column >= 0) & (column < num_columns) & (requests >= 0) & (requests < num_rows)
    if num_rows == 0:
        return torch.full_like(positions, PADDING_SLOT)
    block_ids = block_table[requests.clamp(0, num_rows - 1), column.clamp(0, num_columns - 1)]
    slots = block_ids.to(torch.int64) * block_size + (positions - column * block_size)
    return torch.where(written & inside, slots, PADDING_SLOT)
