# SPDX-License-Identifier: Apache-2.0
"""``draft_plan``: positions, lengths and slots of all later passes of a proposal, in one launch.

After the first pass of a proposal, positions advance by one per pass whatever is sampled, so
everything that the later passes' attention metadata holds is known before the first of them runs.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from mkv_ascend.ops import checks
from mkv_ascend.ops.group_table import BLOCK_SIZE, slots_of
from mkv_ascend.ops.registration import CustomOp, register
from mkv_ascend.ops.schema import Written, arguments_of

NAME = "draft_plan"


def check(
    positions: torch.Tensor,
    num_requests: torch.Tensor,
    block_tables: Sequence[torch.Tensor],
    group_table: torch.Tensor,
    max_model_len: int,
    step_positions: Written,
    lengths: Written,
    slots: Written,
) -> None:
    """Refuse wrong dtypes, shapes, strides and devices; see ``draft_plan``."""
    int32 = (torch.int32,)
    checks.require_tensor(NAME, "positions", positions, checks.INDEX_DTYPES, (None,))
    checks.require_tensor(NAME, "num_requests", num_requests, int32, (1,))
    checks.require_groups(NAME, block_tables, group_table)
    checks.require_model_length(NAME, max_model_len)
    rows, groups = positions.shape[0], len(block_tables)
    checks.require_tensor(NAME, "step_positions", step_positions, (positions.dtype,), (None, rows))
    steps = step_positions.shape[0]
    checks.require_tensor(NAME, "lengths", lengths, int32, (steps, rows))
    checks.require_tensor(NAME, "slots", slots, int32, (steps, groups, rows))
    tensors = [
        ("positions", positions), ("num_requests", num_requests),
        *((f"block_tables[{index}]", table) for index, table in enumerate(block_tables)),
        ("group_table", group_table), ("step_positions", step_positions), ("lengths", lengths),
        ("slots", slots),
    ]  # fmt: skip
    checks.require_one_device(NAME, tensors)


def reference(
    positions: torch.Tensor,
    num_requests: torch.Tensor,
    block_tables: Sequence[torch.Tensor],
    group_table: torch.Tensor,
    max_model_len: int,
    step_positions: torch.Tensor,
    lengths: torch.Tensor,
    slots: torch.Tensor,
) -> None:
    """The op in plain torch operations; see ``draft_plan``."""
    num_steps, num_rows = lengths.shape
    device = positions.device
    rows = torch.arange(num_rows, device=device)
    live = rows < num_requests
    steps = torch.arange(1, num_steps + 1, device=device)[:, None]
    moved = positions.to(torch.int64) + steps
    fits = (moved >= 0) & (moved < max_model_len)
    kept = torch.where(live & fits, moved, 0)
    step_positions.copy_(kept)
    lengths.copy_(torch.where(live, kept + 1, 0))
    for group, table in enumerate(block_tables):
        block_size = group_table[group, BLOCK_SIZE]
        slots[:, group].copy_(slots_of(kept, rows, live & fits, table, block_size))


_op = register(CustomOp(NAME, arguments_of(check), check, reference))


def draft_plan(
    positions: torch.Tensor,
    num_requests: torch.Tensor,
    block_tables: Sequence[torch.Tensor],
    group_table: torch.Tensor,
    max_model_len: int,
    step_positions: torch.Tensor,
    lengths: torch.Tensor,
    slots: torch.Tensor,
) -> None:
    """Plan the later passes of a proposal, K - 1 of them over G KV groups for R rows.

    Later pass s (1 to K - 1; row s - 1 of the outputs) puts a request's token at ``position + s``:

    - within the maximum length: length ``position + s + 1``, slot from each group's block table;
      -1 where the position lies past the table's columns;
    - at or past it (or below 0): position 0, length 1, slot -1. Nothing may be written there, and
      attention over one key is the least that backends take;
    - rows from ``num_requests`` on are padding: position 0, length 0, slot -1.

    Args:
        positions: int32 or int64 [R], position of each request's last token in the first pass.
        num_requests: int32 [1], on the device: a captured graph freezes what is passed by value.
        block_tables: G int32 [rows, columns], ids of kernel blocks. Every live request has a row.
        group_table: int64 [G, 4], ``group_table(block_tables, block_sizes)``.
        max_model_len: tokens that the draft can hold, 1 to 2**31 - 1.
        step_positions: out, the dtype of ``positions`` [K - 1, R].
        lengths: out, int32 [K - 1, R].
        slots: out, int32 [K - 1, G, R]. A slot must fit int32.

    Outputs may be views of larger buffers whose last dimension is dense.

    Raises:
        ValueError: a wrong dtype, shape, stride or device, named by argument.
    """
    _op(
        positions, num_requests, list(block_tables), group_table, max_model_len, step_positions,
        lengths, slots,
    )  # fmt: skip
