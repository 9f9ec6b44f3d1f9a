# SPDX-License-Identifier: Apache-2.0
"""Sizes at which the ops are measured, and the least bytes that each could move."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from mkv_ascend.ops.expand_inputs import ExpandInputs
from mkv_ascend.ops.group_table import group_table
from mkv_ascend.ops.target_slots import slot_table
from mkv_ascend.ops.zero_blocks import page_table

COLUMNS, BLOCK_SIZE = 80, 128
MAX_MODEL_LEN = COLUMNS * BLOCK_SIZE
SECTOR = 32
"""Bytes of global memory that move together: whoever wants one of them moves all."""


@dataclass(frozen=True)
class Case:
    """One op at one size.

    Attributes:
        arguments: makes the op's arguments, on the CPU.
        least_bytes: every sector that holds a value which the op must read or write, once.
        requests: what instructions are counted per.
        loop: the sizes for the plain loop.
    """

    op: str
    size: str
    arguments: Callable[[], tuple[Any, ...]]
    least_bytes: int
    requests: int
    loop: tuple[int, ...]


def _int32(values: Any) -> torch.Tensor:
    return torch.as_tensor(values, dtype=torch.int32)


def _out(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype)


def _tables(groups: int, rows: int) -> list[torch.Tensor]:
    ids = torch.arange(rows * COLUMNS, dtype=torch.int32).view(rows, COLUMNS)
    return [ids + group for group in range(groups)]


def _positions(rows: int, length: int) -> torch.Tensor:
    first = torch.arange(rows) * 97 % (MAX_MODEL_LEN - length - 8)
    return (first[:, None] + torch.arange(length)).flatten()


def _sectors(*elements: int, item: int = 4) -> int:
    """Bytes of the sectors of dense tensors of so many elements, each from a sector's start on."""
    return sum(-(-count * item // SECTOR) * SECTOR for count in elements)


def _id_sectors(positions: torch.Tensor, groups: int) -> int:
    """Bytes of the sectors of block tables that hold the ids of each request's positions.

    Args:
        positions: [requests, tokens].
        groups: KV groups, whose tables are alike.
    """
    rows = torch.arange(positions.shape[0])[:, None]
    elements = rows * COLUMNS + positions // BLOCK_SIZE
    return int(torch.unique(elements * 4 // SECTOR).numel()) * SECTOR * groups


def _table_sectors(groups: int) -> int:
    """The number of live requests and the group table."""
    return _sectors(1) + _sectors(4 * groups, item=8)


def draft_plan(rows: int, groups: int = 4, steps: int = 4) -> Case:
    """K = steps + 1."""

    def arguments() -> tuple[Any, ...]:
        tables = _tables(groups, rows)
        return (
            _int32(_positions(rows, 1)), _int32([rows]), tables,
            group_table(tables, [BLOCK_SIZE] * groups), MAX_MODEL_LEN, _out(steps, rows),
            _out(steps, rows), _out(steps, groups, rows),
        )  # fmt: skip

    planned = _positions(rows, 1)[:, None] + torch.arange(1, steps + 1)
    reads = _sectors(rows) + _table_sectors(groups) + _id_sectors(planned, groups)
    least = reads + _sectors(*[steps * rows] * 2, steps * groups * rows)
    size = f"B={rows} G={groups} K={steps + 1}"
    return Case("draft_plan", size, arguments, least, rows, (rows, steps, groups))


def expand_inputs(rows: int, length: int, rejected: int, groups: int = 4) -> Case:
    """The first pass of a draft model: a row more per request, none shifted."""
    tokens = rows * length
    out = tokens + rows

    def arguments() -> tuple[Any, ...]:
        tables = _tables(groups, rows)
        byte = torch.int8
        return tuple(
            ExpandInputs(
                _int32(torch.arange(tokens)), _int32(_positions(rows, length)),
                _int32(torch.arange(rows)), _int32(torch.arange(rows + 1) * length),
                _int32([rows]), tables, group_table(tables, [BLOCK_SIZE] * groups), 1, False,
                MAX_MODEL_LEN, _out(out), _out(out), _out(out, dtype=byte), _out(out, dtype=byte),
                _out(rows), _out(rows + 1), _out(rows), _out(rows), _out(groups, out),
                num_rejected=_int32([rejected] * rows),
            )
        )  # fmt: skip

    # Only the first position of each request is wanted, and an id for each row that is kept.
    kept = length - rejected + 1
    first = torch.unique(torch.arange(rows) * length * 4 // SECTOR).numel() * SECTOR
    reads = _sectors(tokens, rows, rows + 1, rows) + first + _table_sectors(groups)
    reads += _id_sectors(
        _positions(rows, length).view(rows, length)[:, :1] + torch.arange(kept), groups
    )
    least = reads + _sectors(out, out, groups * out, rows, rows + 1, rows, rows)
    least += _sectors(out, out, item=1)
    size = f"B={rows} T={tokens} G={groups}"
    return Case("expand_inputs", size, arguments, least, rows, (rows, length, rejected, groups))


def target_slots(rows: int, length: int, groups: int = 4) -> Case:
    """All slots of the target's batch."""
    tokens = rows * length

    def arguments() -> tuple[Any, ...]:
        tables, outputs = _tables(groups, rows), [_out(tokens) for _ in range(groups)]
        return (
            _positions(rows, length), _int32(torch.arange(rows + 1) * length), _int32([rows]),
            tables, group_table(tables, [BLOCK_SIZE] * groups), outputs, slot_table(outputs),
        )  # fmt: skip

    reads = _sectors(tokens, item=8) + _sectors(rows + 1) + _table_sectors(groups)
    reads += _sectors(2 * groups, item=8) + _id_sectors(
        _positions(rows, length).view(rows, -1), groups
    )
    least = reads + _sectors(*[tokens] * groups)
    size = f"B={rows} T={tokens} G={groups}"
    return Case("target_slots", size, arguments, least, rows, (rows, length, groups))


def zero_blocks(ids: int, caches: int, row_bytes: int) -> Case:
    """Blocks of ``BLOCK_SIZE`` rows."""
    block_bytes = BLOCK_SIZE * row_bytes

    def arguments() -> tuple[Any, ...]:
        made = [_out(2 * ids, block_bytes, dtype=torch.int8) for _ in range(caches)]
        return torch.arange(ids) * 2, made, page_table(made)

    least = _sectors(ids, 4 * caches, item=8) + ids * caches * block_bytes
    size = f"N={ids} caches={caches} row={row_bytes}"
    return Case("zero_blocks", size, arguments, least, ids * caches, (ids, caches, block_bytes))


CASES = (
    draft_plan(1),
    draft_plan(64),
    draft_plan(256),
    expand_inputs(1, 1, 0),
    expand_inputs(1, 5, 2),
    expand_inputs(64, 5, 2),
    expand_inputs(256, 5, 2),
    expand_inputs(1, 8192, 0),
    target_slots(1, 1),
    target_slots(1, 5),
    target_slots(64, 1),
    target_slots(64, 5),
    target_slots(256, 1),
    target_slots(256, 5),
    target_slots(1, 8192),
    zero_blocks(1, 4, 4096),
    zero_blocks(8, 4, 4096),
)
"""What is measured."""
