# SPDX-License-Identifier: Apache-2.0
"""Reading keys and values out of a paged cache through a block table."""

from __future__ import annotations

import torch

from emulated_npu.operators.registry import OperatorArgumentError


def cache_block_size(cache: torch.Tensor) -> int:
    """Tokens per block of a cache in one of the forms of `gather_request`."""
    return cache.shape[1] if cache.dim() == 3 else cache.shape[-2]


def cache_head_size(cache: torch.Tensor, num_heads: int) -> int:
    """Head size of a cache in one of the forms of `gather_request`."""
    if cache.dim() == 3:
        return cache.shape[2] // num_heads
    return cache.shape[3] if cache.dim() == 4 else cache.shape[2] * cache.shape[4]


def gather_request(
    cache: torch.Tensor, block_ids: torch.Tensor, length: int, num_heads: int
) -> torch.Tensor:
    """The first `length` tokens of a request, (length, heads, head size), copied from `cache`.

    cache: its rank says which form it has, as in op-plugin's documentation of
    npu_fused_infer_attention_score: (blocks, block size, heads * head size), (blocks, heads, block
    size, head size), or NZ: (blocks, heads, head size / 16, block size, 16), with 32 in the place
    of 16 for int8.
    block_ids: the request's row of the block table. Errors: a block id outside the cache.
    """
    block_size = cache_block_size(cache)
    num_blocks = -(-length // block_size)
    if num_blocks > block_ids.shape[0]:
        raise OperatorArgumentError(
            f"kv length {length} needs {num_blocks} blocks of {block_size} tokens; the block "
            f"table has {block_ids.shape[0]} columns"
        )
    pages = select_pages(cache, block_ids[:num_blocks])
    if cache.dim() == 4:
        pages = pages.transpose(1, 2)
    elif cache.dim() == 5:
        pages = pages.permute(0, 3, 1, 2, 4)
    size = cache_head_size(cache, num_heads)
    return pages.reshape(num_blocks * block_size, num_heads, size)[:length]


def select_pages(cache: torch.Tensor, block_ids: torch.Tensor) -> torch.Tensor:
    """Copies of the pages `block_ids` of a cache whose first axis is the block."""
    try:
        return cache.index_select(0, block_ids)
    except (IndexError, RuntimeError) as error:
        # Hardware would read another layer's memory here without a word.
        raise OperatorArgumentError(
            f"block ids {block_ids.tolist()} reach outside the cache of {cache.shape[0]} blocks"
        ) from error


def gather_tokens(cache: torch.Tensor, block_ids: torch.Tensor, length: int) -> torch.Tensor:
    """The first `length` rows, (length, heads, head size), of a cache in the form
    (blocks, block size, heads, head size)."""
    num_blocks = -(-length // cache.shape[1])
    pages = select_pages(cache, block_ids[:num_blocks])
    return pages.reshape(-1, *cache.shape[2:])[:length]
