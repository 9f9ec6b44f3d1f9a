# SPDX-License-Identifier: Apache-2.0
"""Checks of what is in the tensors, for debugging: they read every value, on the CPU.

With ``MKV_ASCEND_OPS_CHECKS`` they run before each op on CPU tensors, so on the emulated NPU too.
What they refuse, an op without them would take for something else, or skip.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from mkv_ascend.ops.arguments import DraftPlanArguments, ExpandInputs, TargetSlotsArguments
from mkv_ascend.ops.checks import require

SLOTS = 2**31


def draft_plan(*arguments: Any) -> None:
    """Refuse negative positions, and block ids that have no slots."""
    op, given = "draft_plan", DraftPlanArguments(*arguments)
    live = _live(op, given.num_requests, given.positions.shape[0])
    first = given.positions[:live].to(torch.int64)
    _require_none(op, "positions", first < 0, first, "a live request's position is 0 or more")
    _check_groups(op, given.block_tables, given.group_table, live)
    steps = torch.arange(1, given.step_positions.shape[0] + 1)[:, None]
    moved = (first + steps).flatten()
    requests = torch.arange(live).repeat(steps.shape[0])
    written = moved < given.max_model_len
    _check_block_ids(op, given.block_tables, given.group_table, moved[written], requests[written])


def expand_inputs(*arguments: Any) -> None:
    """Refuse requests without tokens or places, positions with gaps, and wrong block ids."""
    op, given = "expand_inputs", ExpandInputs(*arguments)
    live = _live(op, given.num_requests, given.next_token_ids.shape[0])
    _check_groups(op, given.block_tables, given.group_table, live)
    starts = _starts(op, given.query_start_loc, live, given.token_ids.shape[0])
    lengths = starts[1:] - starts[:-1]
    rejected = torch.zeros_like(lengths)
    if given.num_rejected is not None:
        rejected = given.num_rejected[:live].to(torch.int64)
    _require_none(
        op, "num_rejected", (rejected < 0) | (rejected >= lengths), rejected,
        "a live request keeps one token or more",
    )  # fmt: skip
    more = given.sampled_per_request - int(given.shift)
    rows = int(starts[-1]) + live * more
    require(
        rows <= given.out_token_ids.shape[0],
        op,
        f"out_token_ids has {given.out_token_ids.shape[0]} rows; the requests need {rows}",
    )
    requests = torch.repeat_interleave(torch.arange(live), lengths)
    place = torch.arange(int(starts[-1])) - starts[requests]
    positions = given.positions[: int(starts[-1])].to(torch.int64)
    expected = positions[starts[requests]] + place if live else positions
    _require_none(
        op, "positions", (positions < 0) | (positions != expected), positions,
        "a request's tokens follow each other from 0 or more on",
    )  # fmt: skip
    kept_rows = lengths - rejected + more
    requests = torch.repeat_interleave(torch.arange(live), kept_rows)
    place = torch.arange(requests.shape[0]) - (kept_rows.cumsum(0) - kept_rows)[requests]
    moved = positions[starts[requests]] + place if live else place
    written = moved < given.max_model_len
    _check_block_ids(op, given.block_tables, given.group_table, moved[written], requests[written])


def target_slots(*arguments: Any) -> None:
    """Refuse negative positions, outputs that are too short, and wrong block ids."""
    op, given = "target_slots", TargetSlotsArguments(*arguments)
    live = _live(op, given.num_requests, given.query_start_loc.shape[0] - 1)
    _check_groups(op, given.block_tables, given.group_table, live)
    starts = _starts(op, given.query_start_loc, live, given.positions.shape[0])
    for index, tensor in enumerate(given.slots):
        _check_row(op, "slot_table", given.slot_table, index, [tensor.data_ptr(), tensor.shape[0]])
        require(
            tensor.shape[0] >= int(starts[-1]),
            op,
            f"slots[{index}] has {tensor.shape[0]} places for {int(starts[-1])} tokens",
        )
    positions = given.positions[: int(starts[-1])].to(torch.int64)
    _require_none(op, "positions", positions < 0, positions, "a token's position is 0 or more")
    requests = torch.repeat_interleave(torch.arange(live), starts[1:] - starts[:-1])
    _check_block_ids(op, given.block_tables, given.group_table, positions, requests)


def zero_blocks(
    block_ids: torch.Tensor, caches: Sequence[torch.Tensor], page_table: torch.Tensor
) -> None:
    """Refuse block ids that no cache has, and ids given twice."""
    op = "zero_blocks"
    blocks = max((cache.shape[0] for cache in caches), default=0)
    _require_none(
        op, "block_ids", block_ids >= blocks, block_ids, f"no cache has more than {blocks} blocks"
    )
    _require_each_once(op, "block_ids", block_ids[block_ids >= 0])
    for index, cache in enumerate(caches):
        _check_row(op, "page_table", page_table, index, [cache.data_ptr()])


CHECKS: dict[str, Callable[..., None]] = {
    "draft_plan": draft_plan,
    "expand_inputs": expand_inputs,
    "target_slots": target_slots,
    "zero_blocks": zero_blocks,
}


def _require_none(
    op: str, name: str, wrong: torch.Tensor, values: torch.Tensor, possible: str
) -> None:
    if bool(wrong.any()):
        place = int(wrong.flatten().to(torch.int32).argmax())
        require(False, op, f"{name}[{place}] is {int(values.flatten()[place])}; {possible}")


def _require_each_once(op: str, name: str, values: torch.Tensor) -> None:
    found, counts = torch.unique(values, return_counts=True)
    if bool((counts > 1).any()):
        twice = int(found[counts > 1][0])
        require(False, op, f"{name} holds {twice} more than once; each may be given once")


def _live(op: str, num_requests: torch.Tensor, rows: int) -> int:
    live = int(num_requests[0])
    require(0 <= live <= rows, op, f"num_requests is {live}; there are {rows} rows")
    return live


def _starts(op: str, query_start_loc: torch.Tensor, live: int, tokens: int) -> torch.Tensor:
    starts = query_start_loc[: live + 1].to(torch.int64)
    in_order = int(starts[0]) == 0 and bool((starts[1:] >= starts[:-1]).all())
    require(
        in_order and int(starts[-1]) <= tokens,
        op,
        f"query_start_loc is {starts.tolist()}; it must rise from 0 to at most {tokens} tokens",
    )
    return starts


def _check_row(
    op: str, name: str, table: torch.Tensor, index: int, expected: Sequence[int]
) -> None:
    found = table[index, : len(expected)].tolist()
    require(
        found == list(expected),
        op,
        f"{name}[{index}] describes another tensor than the one given ({found}, not "
        f"{list(expected)}); make it anew when tensors move",
    )


def _check_groups(
    op: str, block_tables: Sequence[torch.Tensor], group_table: torch.Tensor, live: int
) -> None:
    for index, table in enumerate(block_tables):
        expected = [table.data_ptr(), table.stride(0), table.shape[1]]
        _check_row(op, "group_table", group_table, index, expected)
        require(
            live <= table.shape[0],
            op,
            f"block_tables[{index}] has {table.shape[0]} rows for {live} live requests",
        )


def _check_block_ids(
    op: str,
    block_tables: Sequence[torch.Tensor],
    group_table: torch.Tensor,
    positions: torch.Tensor,
    requests: torch.Tensor,
) -> None:
    """Of the blocks that these positions lie in, none may be negative or past int32 slots."""
    for index, table in enumerate(block_tables):
        block_size = int(group_table[index, 3])
        column = positions // block_size
        inside = column < table.shape[1]
        ids = table[requests[inside], column[inside]]
        most = SLOTS // block_size - 1
        _require_none(
            op, f"block_tables[{index}] looked up", (ids < 0) | (ids > most), ids,
            f"ids of blocks of {block_size} tokens are 0 to {most}",
        )  # fmt: skip
