# SPDX-License-Identifier: Apache-2.0
"""Zeroing and copying of blocks before they are used, for caches of any kinds, from the plan.

A block that held states may hold keys next: what is left of the states reads as any number, NaN
included. vLLM has new blocks of models with states zeroed. vllm-ascend's own zeroer takes layers of
two tensors with pages of one size, and refuses others. Where vLLM lets a request go on from the
middle of a block that others may find, it has the block copied.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch

from mkv_ascend.adapters.common.kv_cache.page_shapes import ids_by_group
from mkv_ascend.ops.zero_blocks import page_table, zero_blocks


class PlannedBlockZeroer:
    """Zeroes and copies blocks in every layer's cache, in the place of vLLM's ``KVBlockZeroer``.

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

    def copy_blocks(self, copies: Sequence[tuple[int, int]]) -> None:
        """Copy every byte of blocks, each source as it is before the first copy.

        Args:
            copies: source and destination of each, named as for ``zero_block_ids``.
        """
        sources = ids_by_group(source for source, _ in copies)
        targets = ids_by_group(target for _, target in copies)
        for group, ids in sources.items():
            for plane in self._planes[group]:
                pair = torch.tensor([ids, targets[group]], dtype=torch.int64).to(plane.device)
                plane.index_copy_(0, pair[1], plane.index_select(0, pair[0]))

    def _page_table(self, group: int) -> torch.Tensor:
        # Made at the first use: most models have no block zeroed.
        if group not in self._page_tables:
            self._page_tables[group] = page_table(self._planes[group])
        return self._page_tables[group]


def prepare_blocks(runner: Any, zeroer: str, scheduler_output: Any) -> Any:
    """Zero and copy the blocks of a step in which some are to be copied; the step without that.

    Args:
        runner: either model runner; without a planned zeroer nothing is done.
        zeroer: name of the attribute that has it.
    """
    copies = getattr(scheduler_output, "kv_cache_block_copies", None)
    blocks = getattr(runner, zeroer, None)
    if not copies or not isinstance(blocks, PlannedBlockZeroer):
        return scheduler_output
    blocks.zero_block_ids(scheduler_output.new_block_ids_to_zero or ())
    blocks.copy_blocks(copies)
    done: dict[str, Any] = {"new_block_ids_to_zero": None, "kv_cache_block_copies": None}
    return dataclasses.replace(scheduler_output, **done)
