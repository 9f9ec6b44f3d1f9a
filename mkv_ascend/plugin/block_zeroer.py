# SPDX-License-Identifier: Apache-2.0
"""Zeroing of blocks before they are used again, for caches of any kinds, from the plan.

A block that held states may hold keys next: what is left of the states reads as any number, NaN
included. vLLM has new blocks of models with states zeroed. vllm-ascend's own zeroer takes layers of
two tensors with pages of one size, and refuses others.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch


class PlannedBlockZeroer:
    """Zeroes blocks in every layer's cache; takes the place of vLLM's ``KVBlockZeroer``.

    Args:
        planes: int8, (num_blocks, bytes of a block) each; together all bytes of all blocks
            (``Materialized.planes``).
    """

    def __init__(self, planes: Sequence[torch.Tensor]) -> None:
        self._planes = tuple(planes)

    def zero_block_ids(self, block_ids: Sequence[int]) -> None:
        """Set every byte of these blocks to zero, padding included."""
        if block_ids and self._planes:
            zero_blocks(self._planes, torch.tensor(block_ids, dtype=torch.int64))


def zero_blocks(planes: Sequence[torch.Tensor], block_ids: torch.Tensor) -> None:
    """Zero rows ``block_ids`` (int64, on the host) of every plane; all are on one device.

    Raises:
        IndexError: a plane has no such block.
    """
    ids = block_ids.to(planes[0].device)
    for plane in planes:
        plane.index_fill_(0, ids, 0)
