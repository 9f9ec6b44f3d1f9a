# SPDX-License-Identifier: Apache-2.0
"""Zeroing of blocks before they are used again, for caches of any kinds, from the plan.

A block that held states may hold keys next: what is left of the states reads as any number, NaN
included. vLLM has new blocks of models with states zeroed. vllm-ascend's own zeroer takes layers of
two tensors with pages of one size, and refuses others.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from mkv_ascend.adapters.common.kv_cache.page_shapes import ids_by_group
from mkv_ascend.ops.zero_blocks import page_table, zero_blocks


class PlannedBlockZeroer:
    """Zeroes blocks in every layer's cache; takes the place of vLLM's ``KVBlockZeroer``.

    Args:
        planes: int8, (blocks, bytes of a block) each; together all bytes of all blocks
            (``Materialized.planes``), for all groups or for each.
    """

    def __init__(self, planes: Sequence[Sequence[torch.Tensor]]) -> None:
        self._planes = tuple(tuple(group) for group in planes)
        self._page_tables: dict[int, torch.Tensor] = {}

    def zero_block_ids(self, block_ids: Sequence[int]) -> None:
        """Set every byte of these blocks to zero, padding included, in one launch for each group.

        Args:
            block_ids: named by group where groups have blocks of their own (``page_shapes.named``).
        """
        for group, ids in ids_by_group(block_ids).items():
            if planes := self._planes[group]:
                table = self._page_table(group)
                zero_blocks(torch.tensor(ids, dtype=torch.int64).to(table.device), planes, table)

    def _page_table(self, group: int) -> torch.Tensor:
        # Made at the first use: most models have no block zeroed.
        if group not in self._page_tables:
            self._page_tables[group] = page_table(self._planes[group])
        return self._page_tables[group]
