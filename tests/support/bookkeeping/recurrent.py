# SPDX-License-Identifier: Apache-2.0
"""A target's recurrent states without prefix caching: a block for each token of a verify step.

The state after token j of a verify step is in the request's block j, and the next step goes on from
the block of the last accepted token. Rows without drafts leave their state in block 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from vllm.v1.kv_cache_interface import MambaSpec

from tests.support.bookkeeping.cells import Cells
from tests.support.bookkeeping.plans import TARGET, Core

if TYPE_CHECKING:
    from tests.support.bookkeeping.worker import Held


class StateGroups:
    """The groups of states of a core's target."""

    def __init__(self, core: Core, cells: Cells) -> None:
        self.cells = cells
        self.groups = [
            index
            for index, group in enumerate(core.caches.kv_cache_groups)
            if isinstance(group.kv_cache_spec, MambaSpec)
        ]

    def run(
        self,
        request: Held,
        tables: list[torch.Tensor],
        row: int,
        numbers: list[int],
        count: int,
        drafts: int,
    ) -> None:
        """Go on from the state before the last ``count`` tokens, and keep those after.

        Args:
            numbers: prefixes up to the last token of the row.
        """
        before = len(numbers) - count
        for group in self.groups:
            if before:
                slot = self._slot(tables, group, row, request.accepted - 1)
                self._require(request, group, slot, numbers[before - 1], before - 1)
            kept = numbers[before:] if drafts else numbers[-1:]
            for column, number in enumerate(kept):
                slot = self._slot(tables, group, row, column)
                self.cells.write(request.name, group, TARGET, slot, number)

    def _require(self, request: Held, *where: Any) -> None:
        group, slot, number, position = where
        self.cells.require(request.name, group, TARGET, slot, number, position)

    def _slot(self, tables: list[torch.Tensor], group: int, row: int, column: int) -> int:
        return int(tables[group][row, column]) * self.cells.block_sizes[group]
