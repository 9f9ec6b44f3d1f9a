# SPDX-License-Identifier: Apache-2.0
"""``target_slots``: slots of the target's batch in all KV groups, in one launch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from mkv_ascend.ops.checks import INDEX_DTYPES, Checks
from mkv_ascend.ops.group_table import BLOCK_SIZE, PADDING_SLOT, slots_of
from mkv_ascend.ops.registration import CustomOp, Written, arguments_of, register

NAME = "target_slots"
checks = Checks(NAME)


class TargetSlotsArguments(NamedTuple):
    """Arguments of ``target_slots``, in its order: for T tokens of R requests in G KV groups.

    Attributes:
        positions: int32 or int64 [T], of each token in its sequence.
        query_start_loc: int32 [R + 1], where each request begins.
        num_requests: int32 [1], on the device; requests from there on are padding.
        block_tables: G int32 [rows, columns], ids of kernel blocks; a list. Every live request has
            a row.
        group_table: int64 [G, 4], ``group_table(block_tables, block_sizes)``.
        slots: out, G int32 [size], a list; all of each is written. A slot must fit int32.
        slot_table: int64 [G, 2], ``slot_table(slots)``.
    """

    positions: torch.Tensor
    query_start_loc: torch.Tensor
    num_requests: torch.Tensor
    block_tables: list[torch.Tensor]
    group_table: torch.Tensor
    slots: list[Written]
    slot_table: torch.Tensor


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
    """Refuse wrong dtypes, shapes, strides and devices."""
    given = TargetSlotsArguments(*arguments)
    int32 = (torch.int32,)
    checks.tensor("positions", given.positions, INDEX_DTYPES, (None,))
    checks.tensor("query_start_loc", given.query_start_loc, int32, (None,))
    checks.require(
        given.query_start_loc.shape[0] > 0, "query_start_loc is empty; it must be requests + 1 long"
    )
    checks.tensor("num_requests", given.num_requests, int32, (1,))
    checks.groups(given.block_tables, given.group_table)
    groups, slots = len(given.block_tables), given.slots
    checks.require(
        len(slots) == groups, f"slots holds {len(slots)} tensors for {groups} block_tables"
    )
    for index, tensor in enumerate(slots):
        checks.tensor(f"slots[{index}]", tensor, int32, (None,))
    checks.tensor("slot_table", given.slot_table, (torch.int64,), (groups, 2))
    checks.one_device(given._asdict())


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


def check_values(*arguments: Any) -> None:
    """Refuse negative positions, outputs that are too short, and wrong block ids."""
    given = TargetSlotsArguments(*arguments)
    live = checks.live(given, given.query_start_loc.shape[0] - 1)
    starts = checks.starts(given.query_start_loc, live, given.positions.shape[0])
    for index, tensor in enumerate(given.slots):
        checks.row("slot_table", given.slot_table, index, [tensor.data_ptr(), tensor.shape[0]])
        checks.require(
            tensor.shape[0] >= int(starts[-1]),
            f"slots[{index}] has {tensor.shape[0]} places for {int(starts[-1])} tokens",
        )
    positions = given.positions[: int(starts[-1])].to(torch.int64)
    checks.none_wrong("positions", positions < 0, positions, "a token's position is 0 or more")
    requests = torch.repeat_interleave(torch.arange(live), starts[1:] - starts[:-1])
    checks.block_ids(given, positions, requests)


_op = register(CustomOp(NAME, arguments_of(TargetSlotsArguments), check, reference, check_values))


def target_slots(arguments: TargetSlotsArguments) -> None:
    """Write each token's slot in each KV group, and -1 behind the last token.

    A token whose position lies past its block table's columns gets -1 as well.

    Raises:
        ValueError: a wrong dtype, shape, stride or device, named by argument.
    """
    _op(*arguments)
