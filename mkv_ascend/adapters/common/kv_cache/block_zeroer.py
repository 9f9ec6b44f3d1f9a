# SPDX-License-Identifier: Apache-2.0
"""Zeroing of blocks before they are used again, for caches of any kinds, from the plan.

A block that held states may hold keys next: what is left of the states reads as any number, NaN
included. vLLM has new blocks of models with states zeroed. vllm-ascend's own zeroer takes layers of
two tensors with pages of one size, and refuses others.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch

from mkv_ascend.ops.zero_blocks import page_table, zero_blocks


class PlannedBlockZeroer:
    """Zeroes blocks in every layer's cache; takes the place of vLLM's ``KVBlockZeroer``.

    Args:
        planes: int8, (num_blocks, bytes of a block) each; together all bytes of all blocks
            (``Materialized.planes``).
    """

    def __init__(self, planes: Sequence[torch.Tensor]) -> None:
        self._planes = tuple(planes)

    @functools.cached_property
    def _page_table(self) -> torch.Tensor:
        # Made at the first use: most models have no block zeroed.
        return page_table(self._planes)

    def zero_block_ids(self, block_ids: Sequence[int]) -> None:
        """Set every byte of these blocks to zero, padding included, in one launch."""
        if block_ids and self._planes:
            ids = torch.tensor(block_ids, dtype=torch.int64).to(self._page_table.device)
            zero_blocks(ids, self._planes, self._page_table)
