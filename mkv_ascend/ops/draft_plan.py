# SPDX-License-Identifier: Apache-2.0
"""``draft_plan``: positions, lengths and slots of all later passes of a proposal, in one launch.

After the first pass of a proposal, positions advance by one per pass whatever is sampled, so
everything that the later passes' attention metadata holds is known before the first of them runs.
"""

from __future__ import annotations

from typing import Any

import torch

from mkv_ascend.ops import checks
from mkv_ascend.ops.arguments import DraftPlanArguments
from mkv_ascend.ops.group_table import BLOCK_SIZE, slots_of
from mkv_ascend.ops.registration import CustomOp, register
from mkv_ascend.ops.schema import arguments_of, named_tensors

NAME = "draft_plan"


def check(*arguments: Any) -> None:
    """Refuse wrong dtypes, shapes, strides and devices; see ``DraftPlanArguments``."""
    given = DraftPlanArguments(*arguments)
    int32 = (torch.int32,)
    checks.require_tensor(NAME, "positions", given.positions, checks.INDEX_DTYPES, (None,))
    checks.require_tensor(NAME, "num_requests", given.num_requests, int32, (1,))
    checks.require_groups(NAME, given.block_tables, given.group_table)
    checks.require_model_length(NAME, given.max_model_len)
    rows, groups = given.positions.shape[0], len(given.block_tables)
    dtypes = (given.positions.dtype,)
    checks.require_tensor(NAME, "step_positions", given.step_positions, dtypes, (None, rows))
    steps = given.step_positions.shape[0]
    checks.require_tensor(NAME, "lengths", given.lengths, int32, (steps, rows))
    checks.require_tensor(NAME, "slots", given.slots, int32, (steps, groups, rows))
    checks.require_one_device(NAME, named_tensors(given))


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


_op = register(CustomOp(NAME, arguments_of(DraftPlanArguments), check, reference))


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
