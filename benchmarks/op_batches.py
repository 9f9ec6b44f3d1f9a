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
GATHER = 32
"""Bytes that reading one element costs."""


@dataclass(frozen=True)
class Case:
    """One op at one size.

    Attributes:
        arguments: makes the op's arguments, on the CPU.
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


def _blocks(length: int) -> int:
    """Ids of block tables read for one request and group, 4 bytes each, in gathers."""
    return -(-length // BLOCK_SIZE)


def draft_plan(rows: int, groups: int = 4, steps: int = 4) -> Case:
    """K = steps + 1."""

    def arguments() -> tuple[Any, ...]:
        tables = _tables(groups, rows)
        return (
            _int32(_positions(rows, 1)), _int32([rows]), tables,
            group_table(tables, [BLOCK_SIZE] * groups), MAX_MODEL_LEN, _out(steps, rows),
            _out(steps, rows), _out(steps, groups, rows),
        )  # fmt: skip

    least = 4 * rows + 4 + GATHER * rows * groups + 4 * steps * rows * (2 + groups)
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

    reads = 4 * (tokens + 3 * rows) + GATHER * rows * (1 + groups * _blocks(length))
    least = reads + out * (4 + 4 + 1 + 1 + 4 * groups) + 4 * 4 * rows
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

    least = 8 * tokens + 4 * rows + GATHER * rows * groups * _blocks(length) + 4 * tokens * groups
    size = f"B={rows} T={tokens} G={groups}"
    return Case("target_slots", size, arguments, least, rows, (rows, length, groups))


def zero_blocks(ids: int, caches: int, row_bytes: int) -> Case:
    """Blocks of ``BLOCK_SIZE`` rows."""
    block_bytes = BLOCK_SIZE * row_bytes

    def arguments() -> tuple[Any, ...]:
        made = [_out(2 * ids, block_bytes, dtype=torch.int8) for _ in range(caches)]
        return torch.arange(ids) * 2, made, page_table(made)

    least = 8 * ids + 32 * caches + ids * caches * block_bytes
    size = f"N={ids} caches={caches} row={row_bytes}"
    return Case("zero_blocks", size, arguments, least, ids * caches, (ids, caches, block_bytes))


CASES = (
    draft_plan(1),
    draft_plan(64),
    draft_plan(256),
    expand_inputs(1, 5, 2),
    expand_inputs(256, 5, 2),
    expand_inputs(1, 8192, 0),
    target_slots(256, 1),
    target_slots(256, 5),
    target_slots(1, 8192),
    zero_blocks(1, 4, 4096),
    zero_blocks(8, 4, 4096),
)
"""What is measured."""
