# SPDX-License-Identifier: Apache-2.0
"""A recurrent layer in plain torch, and the builder of its metadata."""

from dataclasses import dataclass, replace
from typing import Any

import torch

from mkv_ascend.drafting.draft import PassBatch
from mkv_ascend.drafting.recurrent_groups import TargetRows
from tests.support.fake_draft import PRIME, FakeDraft


@dataclass
class Built:
    """Metadata of recurrent layers: rows that are run token by token, and that begin a request.

    ``table`` is a copy, as of the columns that kernels take. ``ones``: given by ``finished`` to
    that of a first pass.
    """

    by_token: torch.Tensor
    begins: torch.Tensor
    table: torch.Tensor
    batch: PassBatch
    ones: torch.Tensor | None = None


class RecurrentBuilder:
    def need(self) -> str:
        return "one"

    def first_pass(self, batch: PassBatch, table: Any, rows: TargetRows) -> Built:
        return Built(rows.row_lengths > 0, rows.begins, table.clone(), batch)

    def finished(self, built: Any, rows: TargetRows) -> Built:
        return replace(built, ones=rows.ones)

    def later_pass(self, batch: PassBatch, table: Any, begins: Any) -> Built:
        return Built(torch.zeros(batch.requests, dtype=torch.bool), begins, table.clone(), batch)

    def for_table(self, built: Any, table: torch.Tensor) -> Built:
        return Built(built.by_token, built.begins, table.clone(), built.batch)


class RecurrentLayer:
    """A number for each block, which every token changes."""

    def __init__(self, draft: FakeDraft, blocks: int) -> None:
        self.draft = draft
        self.state = torch.randint(1, 99, (blocks, 1))

    def run(self, rows: int) -> torch.Tensor:
        """The state after each of the rows, int64 [rows]."""
        assert self.draft.metadata is not None
        built: Any = self.draft.metadata["recurrent"]
        assert (built.ones is not None) == (built.batch.index == 0), "of a first pass, finished"
        starts, tokens = built.batch.query_start_loc.long(), self.draft.buffers.token_ids
        table = built.table.long()
        state = torch.where(built.begins, 0, self.state[table[:, 0], 0])
        after = torch.zeros(rows + 1, dtype=torch.int64)
        for place in range(built.batch.longest_row):
            row = (starts[:-1] + place).clamp(max=rows - 1)
            live = place < starts.diff()
            state = torch.where(live, (31 * state + tokens[row]) % PRIME, state)
            column = min(place, table.shape[1] - 1)
            block = torch.where(built.by_token, table[:, column], table[:, 0])
            self.state[torch.where(live, block, 0), 0] = state
            after[torch.where(live, row, rows)] = state
        return after[:rows]
