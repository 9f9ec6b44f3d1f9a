# SPDX-License-Identifier: Apache-2.0
"""``zero_blocks``: zero given blocks of many caches, in one launch."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from mkv_ascend.ops.checks import INDEX_DTYPES, Checks
from mkv_ascend.ops.registration import CustomOp, Written, arguments_of, register

NAME = "zero_blocks"
checks = Checks(NAME)


def page_table(caches: Sequence[torch.Tensor]) -> torch.Tensor:
    """Describe caches to a kernel. Made once; they must stay where they are.

    Args:
        caches: tensors [blocks, ...] of any dtype, one block dense; blocks may lie apart.

    Returns:
        int64 [caches, 4] on their device: address, bytes from block to block, bytes of a block,
        blocks.

    Raises:
        ValueError: no tensor, or one whose blocks are not dense.
    """
    if not caches:
        raise ValueError("page_table: caches is empty; there must be a tensor")
    rows = []
    for index, cache in enumerate(caches):
        if cache.dim() < 1 or not (cache.shape[0] == 0 or cache[0].is_contiguous()):
            raise ValueError(
                f"page_table: caches[{index}] has the shape {tuple(cache.shape)} and the strides "
                f"{cache.stride()}; it must be [blocks, ...], each block dense"
            )
        item = cache.element_size()
        block_bytes = cache[0].numel() * item if cache.shape[0] else 0
        rows.append([cache.data_ptr(), cache.stride(0) * item, block_bytes, cache.shape[0]])
    return torch.tensor(rows, dtype=torch.int64).to(caches[0].device)


def check(block_ids: torch.Tensor, caches: Sequence[Written], page_table: torch.Tensor) -> None:
    """Refuse wrong dtypes, shapes, strides and devices; see ``zero_blocks``."""
    checks.tensor("block_ids", block_ids, INDEX_DTYPES, (None,))
    checks.tensor("page_table", page_table, (torch.int64,), (len(caches), 4))
    for index, cache in enumerate(caches):
        name = f"caches[{index}]"
        checks.require(
            cache.dim() >= 1, f"{name} has the shape {tuple(cache.shape)}; it must be (blocks, ...)"
        )
        checks.require(
            cache.shape[0] == 0 or cache[0].is_contiguous(),
            f"{name} has the strides {tuple(cache.stride())}; one block must be dense",
        )
    checks.one_device({"block_ids": block_ids, "page_table": page_table, "caches": caches})


def reference(
    block_ids: torch.Tensor, caches: Sequence[torch.Tensor], page_table: torch.Tensor
) -> None:
    """The op in plain torch operations; see ``zero_blocks``."""
    for cache in caches:
        num_blocks = cache.shape[0]
        if block_ids.numel() == 0 or cache.numel() == 0:
            continue
        blocks = torch.arange(num_blocks, device=cache.device)
        zeroed = (blocks[:, None] == block_ids).any(1)
        cache.masked_fill_(zeroed.view(-1, *(1 for _ in cache.shape[1:])), 0)


def check_values(
    block_ids: torch.Tensor, caches: Sequence[torch.Tensor], page_table: torch.Tensor
) -> None:
    """Refuse block ids that no cache has, and ids given twice."""
    blocks = max((cache.shape[0] for cache in caches), default=0)
    checks.none_wrong(
        "block_ids", block_ids >= blocks, block_ids, f"no cache has more than {blocks} blocks"
    )
    found, counts = torch.unique(block_ids[block_ids >= 0], return_counts=True)
    for block, count in zip(found.tolist(), counts.tolist(), strict=True):
        checks.require(
            count == 1, f"block_ids holds {block} more than once; each may be given once"
        )
    for index, cache in enumerate(caches):
        checks.row("page_table", page_table, index, [cache.data_ptr()])


_op = register(CustomOp(NAME, arguments_of(check), check, reference, check_values))


def zero_blocks(
    block_ids: torch.Tensor, caches: Sequence[torch.Tensor], page_table: torch.Tensor
) -> None:
    """Set all bytes of the given blocks to zero, in every cache.

    Args:
        block_ids: int32 or int64 [N], each once; ids below 0 or past a cache's blocks are skipped
            there.
        caches: out, tensors [blocks, ...] of any dtype, one block dense; blocks may lie apart.
            Where a block of the KV manager is several kernel blocks, view them as one.
        page_table: int64 [caches, 4], ``page_table(caches)``.

    Raises:
        ValueError: a wrong dtype, shape, stride or device, named by argument.
    """
    _op(block_ids, list(caches), page_table)
