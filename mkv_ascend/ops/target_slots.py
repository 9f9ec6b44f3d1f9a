# SPDX-License-Identifier: Apache-2.0
"""``target_slots``: slots of the target's batch in all KV groups, in one launch."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from mkv_ascend.ops import checks
from mkv_ascend.ops.group_table import BLOCK_SIZE, PADDING_SLOT, slots_of
from mkv_ascend.ops.registration import CustomOp, register
from mkv_ascend.ops.schema import Written, arguments_of

NAME = "target_slots"


def slot_table(slots: Sequence[torch.Tensor]) -> torch.Tensor:
    """Describe the outputs to a kernel. Made once; they must stay where they are.

    Args:
        slots: one int32 [size] per KV group, sizes may differ.

    Returns:
        int64 [groups, 2] on their device: address, size.

    Raises:
        ValueError: no tensor, or one that is not dense int32 in one dimension.
    """
    if not slots:
        raise ValueError("slot_table: slots is empty; there must be one tensor per KV group")
    for index, tensor in enumerate(slots):
        if tensor.dtype != torch.int32 or tensor.dim() != 1 or not tensor.is_contiguous():
            raise ValueError(
                f"slot_table: slots[{index}] is {tensor.dtype} {tuple(tensor.shape)} with strides "
                f"{tensor.stride()}; it must be int32 [size], dense"
            )
    rows = [[tensor.data_ptr(), tensor.shape[0]] for tensor in slots]
    return torch.tensor(rows, dtype=torch.int64).to(slots[0].device)


def check(
    positions: torch.Tensor,
    query_start_loc: torch.Tensor,
    num_requests: torch.Tensor,
    block_tables: Sequence[torch.Tensor],
    group_table: torch.Tensor,
    slots: Sequence[Written],
    slot_table: torch.Tensor,
) -> None:
    """Refuse wrong dtypes, shapes, strides and devices; see ``target_slots``."""
    int32 = (torch.int32,)
    checks.require_tensor(NAME, "positions", positions, checks.INDEX_DTYPES, (None,))
    checks.require_tensor(NAME, "query_start_loc", query_start_loc, int32, (None,))
    checks.require(
        query_start_loc.shape[0] > 0, NAME, "query_start_loc is empty; it must be requests + 1 long"
    )
    checks.require_tensor(NAME, "num_requests", num_requests, int32, (1,))
    checks.require_groups(NAME, block_tables, group_table)
    groups = len(block_tables)
    checks.require(
        len(slots) == groups, NAME, f"slots holds {len(slots)} tensors for {groups} block_tables"
    )
    for index, tensor in enumerate(slots):
        checks.require_tensor(NAME, f"slots[{index}]", tensor, int32, (None,))
    checks.require_tensor(NAME, "slot_table", slot_table, (torch.int64,), (groups, 2))
    tensors = [
        ("positions", positions), ("query_start_loc", query_start_loc),
        ("num_requests", num_requests),
        *((f"block_tables[{index}]", table) for index, table in enumerate(block_tables)),
        ("group_table", group_table),
        *((f"slots[{index}]", tensor) for index, tensor in enumerate(slots)),
        ("slot_table", slot_table),
    ]  # fmt: skip
    checks.require_one_device(NAME, tensors)


def reference(
    positions: torch.Tensor,
    query_start_loc: torch.Tensor,
    num_requests: torch.Tensor,
    block_tables: Sequence[torch.Tensor],
    group_table: torch.Tensor,
    slots: Sequence[torch.Tensor],
    slot_table: torch.Tensor,
) -> None:
    """The op in plain torch operations; see ``target_slots``."""
    num_rows = query_start_loc.shape[0] - 1
    device = positions.device
    tokens = torch.arange(positions.shape[0], device=device)
    last = num_requests.to(torch.int64).clamp(0, num_rows)
    live = torch.arange(num_rows, device=device) < last
    requests = ((tokens[:, None] >= query_start_loc[:-1]) & live).sum(1) - 1
    written = (tokens < query_start_loc[last]) & (positions >= 0)
    for group, table in enumerate(block_tables):
        block_size = group_table[group, BLOCK_SIZE]
        found = slots_of(positions.to(torch.int64), requests, written, table, block_size)
        count = min(slots[group].shape[0], found.shape[0])
        slots[group][:count].copy_(found[:count])
        slots[group][count:].fill_(PADDING_SLOT)


_op = register(CustomOp(NAME, arguments_of(check), check, reference))


def target_slots(
    positions: torch.Tensor,
    query_start_loc: torch.Tensor,
    num_requests: torch.Tensor,
    block_tables: Sequence[torch.Tensor],
    group_table: torch.Tensor,
    slots: Sequence[torch.Tensor],
    slot_table: torch.Tensor,
) -> None:
    """Write each token's slot in each KV group, and -1 behind the last token.

    A token whose position lies past its block table's columns gets -1 as well.

    Args:
        positions: int32 or int64 [T], of each token in its sequence.
        query_start_loc: int32 [R + 1], where each request begins.
        num_requests: int32 [1], on the device; requests from there on are padding.
        block_tables: G int32 [rows, columns], ids of kernel blocks. Every live request has a row.
        group_table: int64 [G, 4], ``group_table(block_tables, block_sizes)``.
        slots: out, G int32 [size]; all of each is written. A slot must fit int32.
        slot_table: int64 [G, 2], ``slot_table(slots)``.

    Raises:
        ValueError: a wrong dtype, shape, stride or device, named by argument.
    """
    _op(
        positions, query_start_loc, num_requests, list(block_tables), group_table, list(slots),
        slot_table,
    )  # fmt: skip
