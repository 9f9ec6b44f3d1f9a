# SPDX-License-Identifier: Apache-2.0
"""Checks of arguments, shared by all ops: what was asked, what is possible, what to change.

From ``none_wrong`` on those of what is in the tensors, for debugging: they read every value, on the
CPU. With ``MKV_ASCEND_OPS_CHECKS`` they run before each op on CPU tensors, so on the emulated NPU
too. What they refuse, an op without them would take for something else, or skip.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

SLOTS = 2**31
INDEX_DTYPES = (torch.int32, torch.int64)


class Checks:
    """Of one op, whose name stands in front of each message."""

    def __init__(self, op: str) -> None:
        self.op = op

    def require(self, holds: bool, message: str) -> None:
        """Raise ValueError with the op's name in front of the message unless ``holds``."""
        if not holds:
            raise ValueError(f"mkv_ascend::{self.op}: {message}")

    def tensor(
        self,
        name: str,
        tensor: torch.Tensor,
        dtypes: Sequence[torch.dtype],
        shape: Sequence[int | None],
    ) -> None:
        """Refuse another dtype or shape (None: any size), or elements of a row that lie apart.

        Only the last dimension must be dense: rows may lie apart, as in a view of a larger buffer.
        """
        if tensor.dtype not in dtypes:
            allowed = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
            given = str(tensor.dtype).removeprefix("torch.")
            self.require(False, f"{name} is {given}; it must be {allowed}")
        fits = tensor.dim() == len(shape) and all(
            wanted is None or size == wanted
            for size, wanted in zip(tensor.shape, shape, strict=True)
        )
        if not fits:
            words = ", ".join("any" if wanted is None else str(wanted) for wanted in shape)
            self.require(False, f"{name} has the shape {tuple(tensor.shape)}; it must be ({words})")
        if tensor.dim() > 0 and tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
            self.require(
                False,
                f"{name} has the strides {tuple(tensor.stride())}; its last dimension must be "
                "dense (stride 1): call contiguous() or take another view",
            )

    def one_device(self, arguments: Mapping[str, Any]) -> None:
        """Refuse tensors, those in lists too, that do not all lie on the device of the first."""
        tensors = [
            (name if one is value else f"{name}[{index}]", one)
            for name, value in arguments.items()
            for index, one in enumerate(value if isinstance(value, list | tuple) else [value])
            if isinstance(one, torch.Tensor)
        ]
        first_name, first = tensors[0]
        for name, tensor in tensors[1:]:
            self.require(
                tensor.device == first.device,
                f"{name} is on {tensor.device}, {first_name} on {first.device}; all tensors must "
                "be on one device",
            )

    def groups(self, block_tables: Sequence[torch.Tensor], group_table: torch.Tensor) -> None:
        """Refuse block tables and a group table that do not describe the same KV groups."""
        self.require(
            bool(block_tables), "block_tables is empty; it must hold one for each KV group"
        )
        for index, table in enumerate(block_tables):
            self.tensor(f"block_tables[{index}]", table, (torch.int32,), (None, None))
            self.require(
                table.shape[1] > 0,
                f"block_tables[{index}] has the shape {tuple(table.shape)}; it must have a column",
            )
        self.tensor("group_table", group_table, (torch.int64,), (len(block_tables), 4))

    def model_length(self, max_model_len: int) -> None:
        """Refuse a maximum length that is not positive, or beyond what int32 can count."""
        self.require(
            0 < max_model_len < 2**31,
            f"max_model_len is {max_model_len}; it must be 1 to {2**31 - 1}",
        )

    def none_wrong(
        self, name: str, wrong: torch.Tensor, values: torch.Tensor, possible: str
    ) -> None:
        """Refuse values that are ``wrong``; the message names the first."""
        if bool(wrong.any()):
            place = int(wrong.flatten().to(torch.int32).argmax())
            self.require(False, f"{name}[{place}] is {int(values.flatten()[place])}; {possible}")

    def live(self, given: Any, rows: int) -> int:
        """How many requests are live; refuses more than rows, and another's group table."""
        live = int(given.num_requests[0])
        self.require(0 <= live <= rows, f"num_requests is {live}; there are {rows} rows")
        for index, table in enumerate(given.block_tables):
            expected = [table.data_ptr(), table.stride(0), table.shape[1]]
            self.row("group_table", given.group_table, index, expected)
            self.require(
                live <= table.shape[0],
                f"block_tables[{index}] has {table.shape[0]} rows for {live} live requests",
            )
        return live

    def starts(self, query_start_loc: torch.Tensor, live: int, tokens: int) -> torch.Tensor:
        """Where each live request begins, and the last ends; refuses what is not in order."""
        starts = query_start_loc[: live + 1].to(torch.int64)
        in_order = int(starts[0]) == 0 and bool((starts[1:] >= starts[:-1]).all())
        self.require(
            in_order and int(starts[-1]) <= tokens,
            f"query_start_loc is {starts.tolist()}; it must rise from 0 to at most {tokens} tokens",
        )
        return starts

    def row(self, name: str, table: torch.Tensor, index: int, expected: Sequence[int]) -> None:
        """Refuse a table for kernels whose row describes another tensor than the one given."""
        found = table[index, : len(expected)].tolist()
        self.require(
            found == list(expected),
            f"{name}[{index}] describes another tensor than the one given ({found}, not "
            f"{list(expected)}); make it anew when tensors move",
        )

    def block_ids(
        self, given: Any, positions: torch.Tensor, requests: torch.Tensor, below: int = SLOTS
    ) -> None:
        """Of blocks that positions ``below`` lie in, none may be negative or past int32 slots."""
        written = positions < below
        positions, requests = positions[written], requests[written]
        for index, table in enumerate(given.block_tables):
            block_size = int(given.group_table[index, 3])
            column = positions // block_size
            inside = column < table.shape[1]
            ids = table[requests[inside], column[inside]]
            most = SLOTS // block_size - 1
            possible = f"ids of blocks of {block_size} tokens are 0 to {most}"
            wrong = (ids < 0) | (ids > most)
            self.none_wrong(f"block_tables[{index}] looked up", wrong, ids, possible)
