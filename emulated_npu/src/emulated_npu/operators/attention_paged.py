# SPDX-License-Identifier: Apache-2.0
"""_npu_paged_attention and _npu_flash_attention_unpad, the older attention operators (ATB)."""

from __future__ import annotations

import torch

from emulated_npu.operators.attention_call import host_integers
from emulated_npu.operators.attention_core import attend
from emulated_npu.operators.attention_paging import gather_tokens
from emulated_npu.operators.binding import Arguments
from emulated_npu.operators.registry import OperatorArgumentError, operator
from emulated_npu.operators.requirements import (
    HALF_FLOATS,
    require,
    require_contiguous,
    require_dtype,
    require_multiple,
    require_range,
    require_rank,
    require_same_dtype,
    require_shape,
)


def _check_heads(num_heads: int, num_kv_heads: int) -> None:
    require_range("num_kv_heads", num_kv_heads, 1, 256)
    require(
        num_heads % num_kv_heads == 0,
        f"num_heads {num_heads} is not a multiple of num_kv_heads {num_kv_heads}",
    )


@operator(
    "_npu_paged_attention",
    source="op-plugin test: test_atb_paged_attention",
    limits="""float16 or bfloat16; caches (blocks, block size, kv heads, head size), contiguous,
    block size a multiple of 16; block_table int32; context_lens int32, one query a request.""",
    missing="mask_type, quantization",
    host_arguments=("context_lens",),
    writes=("out",),
)
def npu_paged_attention(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    num_kv_heads: int,
    num_heads: int,
    scale_value: float,
    block_table: torch.Tensor,
    context_lens: torch.Tensor,
    out: torch.Tensor,
    *,
    workspace: torch.Tensor | None = None,
) -> torch.Tensor:
    """One query for each request over its first context_lens keys; query and out (T, N, D)."""
    for index, length in enumerate(host_integers(context_lens) or ()):
        if length > block_table.shape[1] * key_cache.shape[1]:
            raise OperatorArgumentError(
                f"context length {length} is longer than the {block_table.shape[1]} blocks of "
                f"{key_cache.shape[1]} tokens that block_table holds"
            )
        key = gather_tokens(key_cache, block_table[index], length)
        value = gather_tokens(value_cache, block_table[index], length)
        row = query[index].reshape(1, num_heads, -1)
        result = attend(row, key, value, scale_value, None).output
        out[index] = result.reshape(out[index].shape)
    return out


@npu_paged_attention.check
def _check_paged(given: Arguments) -> None:
    require_dtype("query", given.query, HALF_FLOATS)
    require_same_dtype(
        query=given.query, key_cache=given.key_cache, value_cache=given.value_cache, out=given.out
    )
    require_rank("query", given.query, 3)
    _check_heads(given.num_heads, given.num_kv_heads)
    num_tokens, _, head_size = given.query.shape
    require_shape("query", given.query, (None, given.num_heads, None))
    require_shape("key_cache", given.key_cache, (None, None, given.num_kv_heads, head_size))
    require_shape("value_cache", given.value_cache, (*given.key_cache.shape[:3], None))
    require_range("the head size", head_size, 1, 576)
    require_multiple("the block size", given.key_cache.shape[1], 16)
    require_contiguous("key_cache", given.key_cache)
    require_contiguous("value_cache", given.value_cache)
    require_dtype("block_table", given.block_table, (torch.int32,))
    require_rank("block_table", given.block_table, 2)
    require_dtype("context_lens", given.context_lens, (torch.int32,))
    require(
        given.context_lens.numel() <= min(num_tokens, given.block_table.shape[0]),
        f"{given.context_lens.numel()} context_lens for {num_tokens} queries and "
        f"{given.block_table.shape[0]} rows of block_table; there may not be more",
    )


@operator(
    "_npu_paged_attention_get_workspace",
    source="op-plugin test: test_atb_paged_attention",
    limits="Gives one byte: the emulation needs no workspace, so its size says nothing.",
    host_arguments=("context_lens",),
    launches=False,
)
def npu_paged_attention_get_workspace(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    num_kv_heads: int,
    num_heads: int,
    scale_value: float,
    block_table: torch.Tensor,
    context_lens: torch.Tensor,
    out: torch.Tensor,
) -> torch.Tensor:
    """A workspace for _npu_paged_attention."""
    return torch.empty(1, dtype=torch.uint8)


@operator(
    "_npu_flash_attention_unpad",
    source="op-plugin test: test_atb_flash_attention_unpad",
    limits="float16 or bfloat16; requests one after the other; no mask; seq_len int32.",
    host_arguments=("seq_len",),
    writes=("out",),
)
def npu_flash_attention_unpad(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    seq_len: torch.Tensor,
    scale_value: float,
    num_heads: int,
    num_kv_heads: int,
    out: torch.Tensor,
) -> torch.Tensor:
    """Attention of each request over itself without a mask.

    query, key, value, out: (T, N, D) or (T, N * D). seq_len: length of each request.
    """
    queries = _by_head(query, num_heads)
    keys, values = _by_head(key, num_kv_heads), _by_head(value, num_kv_heads)
    start = 0
    for length in host_integers(seq_len) or ():
        rows = slice(start, start + length)
        result = attend(queries[rows], keys[rows], values[rows], scale_value, None).output
        out[rows] = result.reshape(out[rows].shape)
        start += length
    return out


def _by_head(tensor: torch.Tensor, num_heads: int) -> torch.Tensor:
    """(T, N, D) from that or from (T, N * D)."""
    return tensor if tensor.dim() == 3 else tensor.unflatten(1, (num_heads, -1))


@npu_flash_attention_unpad.check
def _check_unpad(given: Arguments) -> None:
    if given.query.dtype == torch.float32:
        # vllm-ascend asks npu_fusion_attention instead, so float32_compute has no use here.
        raise OperatorArgumentError("query is float32; documented: float16, bfloat16")
    require_dtype("query", given.query, HALF_FLOATS)
    require_same_dtype(query=given.query, key=given.key, value=given.value, out=given.out)
    _check_heads(given.num_heads, given.num_kv_heads)
    require_dtype("seq_len", given.seq_len, (torch.int32,))
    total = int(given.seq_len.sum())
    for name, tensor in (
        ("query", given.query),
        ("key", given.key),
        ("value", given.value),
        ("out", given.out),
    ):
        require_rank(name, tensor, (2, 3))
        require(
            tensor.shape[0] >= total,
            f"{name} has {tensor.shape[0]} tokens; seq_len sums to {total}",
        )
