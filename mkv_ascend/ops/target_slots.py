# SPDX-License-Identifier: Apache-2.0
"""``target_slots``: slots of the target's batch in all KV groups, in one launch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from mkv_ascend.ops import checks
from mkv_ascend.ops.arguments import TargetSlotsArguments
from mkv_ascend.ops.group_table import BLOCK_SIZE, PADDING_SLOT, slots_of
from mkv_ascend.ops.registration import CustomOp, register
from mkv_ascend.ops.schema import arguments_of, named_tensors

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


def check(*arguments: Any) -> None:
    """Refuse wrong dtypes, shapes, strides and devices; see ``TargetSlotsArguments``."""
    given = TargetSlotsArguments(*arguments)
    int32 = (torch.int32,)
    checks.require_tensor(NAME, "positions", given.positions, checks.INDEX_DTYPES, (None,))
    checks.require_tensor(NAME, "query_start_loc", given.query_start_loc, int32, (None,))
    checks.require(
        given.query_start_loc.shape[0] > 0,
        NAME,
        "query_start_loc is empty; it must be requests + 1 long",
    )
    checks.require_tensor(NAME, "num_requests", given.num_requests, int32, (1,))
    checks.require_groups(NAME, given.block_tables, given.group_table)
    groups, slots = len(given.block_tables), given.slots
    checks.require(
        len(slots) == groups, NAME, f"slots holds {len(slots)} tensors for {groups} block_tables"
    )
    for index, tensor in enumerate(slots):
        checks.require_tensor(NAME, f"slots[{index}]", tensor, int32, (None,))
    checks.require_tensor(NAME, "slot_table", given.slot_table, (torch.int64,), (groups, 2))
    checks.require_one_device(NAME, named_tensors(given))


def reference(*arguments: Any) -> None:
    """The op in plain torch operations; see ``target_slots``."""
    given = TargetSlotsArguments(*arguments)
    positions, starts = given.positions, given.query_start_loc
    num_rows = starts.shape[0] - 1
    device = positions.device
    tokens = torch.arange(positions.shape[0], device=device)
    last = given.num_requests.to(torch.int64).clamp(0, num_rows)
    live = torch.arange(num_rows, device=device) < last
    requests = ((tokens[:, None] >= starts[:-1]) & live).sum(1) - 1
    written = (tokens < starts[last]) & (positions >= 0)
    for group, (table, slots) in enumerate(zip(given.block_tables, given.slots, strict=True)):
        block_size = given.group_table[group, BLOCK_SIZE]
        found = slots_of(positions.to(torch.int64), requests, written, table, block_size)
        count = min(slots.shape[0], found.shape[0])
        slots[:count].copy_(found[:count])
        slots[count:].fill_(PADDING_SLOT)


_op = register(CustomOp(NAME, arguments_of(TargetSlotsArguments), check, reference))


def target_slots(arguments: TargetSlotsArguments) -> None:
    """Write each token's slot in each KV group, and -1 behind the last token.

    A token whose position lies past its block table's columns gets -1 as well.

    Raises:
        ValueError: a wrong dtype, shape, stride or device, named by argument.
    """
    _op(*arguments)
