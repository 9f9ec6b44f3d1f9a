# SPDX-License-Identifier: Apache-2.0
"""``draft_plan``: positions, lengths and slots of all later passes of a proposal, in one launch.

After the first pass of a proposal, positions advance by one per pass whatever is sampled, so
everything that the later passes' attention metadata holds is known before the first of them runs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from mkv_ascend.ops.checks import INDEX_DTYPES, Checks
from mkv_ascend.ops.group_table import BLOCK_SIZE, slots_of
from mkv_ascend.ops.registration import CustomOp, Written, arguments_of, register

NAME = "draft_plan"
checks = Checks(NAME)


class DraftPlanArguments(NamedTuple):
    """Arguments of ``draft_plan``, in its order: for R rows, G KV groups and K - 1 later passes.

    Outputs may be views of larger buffers whose last dimension is dense.

    Attributes:
        positions: int32 or int64 [R], position of each request's last token in the first pass.
        num_requests: int32 [1], on the device: a captured graph freezes what is passed by value.
        block_tables: G int32 [rows, columns], ids of kernel blocks; a list. Every live request has
            a row.
        group_table: int64 [G, 4], ``group_table(block_tables, block_sizes)``.
        max_model_len: tokens that the draft can hold, 1 to 2**31 - 1.
        step_positions: out, the dtype of ``positions`` [K - 1, R].
        lengths: out, int32 [K - 1, R].
        slots: out, int32 [K - 1, G, R]. A slot must fit int32.
    """

    positions: torch.Tensor
    num_requests: torch.Tensor
    block_tables: list[torch.Tensor]
    group_table: torch.Tensor
    max_model_len: int
    step_positions: Written
    lengths: Written
    slots: Written


def check(*arguments: Any) -> None:
    """Refuse wrong dtypes, shapes, strides and devices."""
    given = DraftPlanArguments(*arguments)
    int32 = (torch.int32,)
    checks.tensor("positions", given.positions, INDEX_DTYPES, (None,))
    checks.tensor("num_requests", given.num_requests, int32, (1,))
    checks.groups(given.block_tables, given.group_table)
    checks.model_length(given.max_model_len)
    rows, groups = given.positions.shape[0], len(given.block_tables)
    dtypes = (given.positions.dtype,)
    checks.tensor("step_positions", given.step_positions, dtypes, (None, rows))
    steps = given.step_positions.shape[0]
    checks.tensor("lengths", given.lengths, int32, (steps, rows))
    checks.tensor("slots", given.slots, int32, (steps, groups, rows))
    checks.one_device(given._asdict())


def reference(*arguments: Any) -> None:
    """The op in plain torch operations; see ``draft_plan``."""
    given = DraftPlanArguments(*arguments)
    num_steps, num_rows = given.lengths.shape
    device = given.positions.device
    rows = torch.arange(num_rows, device=device)
    live = rows < given.num_requests
    steps = torch.arange(1, num_steps + 1, device=device)[:, None]
    moved = given.positions.to(torch.int64) + steps
    fits = (moved >= 0) & (moved < given.max_model_len)
    kept = torch.where(live & fits, moved, 0)
    given.step_positions.copy_(kept)
    given.lengths.copy_(torch.where(live, kept + 1, 0))
    for group, table in enumerate(given.block_tables):
        block_size = given.group_table[group, BLOCK_SIZE]
        given.slots[:, group].copy_(slots_of(kept, rows, live & fits, table, block_size))


def check_values(*arguments: Any) -> None:
    """Refuse negative positions, and block ids that have no slots."""
    given = DraftPlanArguments(*arguments)
    live = checks.live(given, given.positions.shape[0])
    first = given.positions[:live].to(torch.int64)
    checks.none_wrong("positions", first < 0, first, "a live request's position is 0 or more")
    steps = torch.arange(1, given.step_positions.shape[0] + 1)[:, None]
    moved = (first + steps).flatten()
    requests = torch.arange(live).repeat(steps.shape[0])
    checks.block_ids(given, moved, requests, given.max_model_len)


_op = register(CustomOp(NAME, arguments_of(DraftPlanArguments), check, reference, check_values))


def draft_plan(arguments: DraftPlanArguments) -> None:
    """Plan the later passes of a proposal, K - 1 of them over G KV groups for R rows.

    Later pass s (1 to K - 1; row s - 1 of the outputs) puts a request's token at ``position + s``:

    - within the maximum length: length ``position + s + 1``, slot from each group's block table;
      -1 where the position lies past the table's columns;
    - at or past it (or below 0): position 0, length 1, slot -1. Nothing may be written there, and
      attention over one key is the least that backends take;
    - rows from ``num_requests`` on are padding: position 0, length 0, slot -1.

    Raises:
        ValueError: a wrong dtype, shape, stride or device, named by argument.
    """
    _op(*arguments)
