# SPDX-License-Identifier: Apache-2.0
"""The choice of keys for sparse attention: npu_lightning_indexer of torch_npu and vllm-ascend."""

from __future__ import annotations

import torch

from emulated_npu.operators.binding import Arguments
from emulated_npu.operators.registry import operator
from emulated_npu.operators.requirements import (
    FLOATS,
    HALF_FLOATS,
    require,
    require_contiguous,
    require_dtype,
    require_range,
    require_same_dtype,
    require_shape,
)
from emulated_npu.operators.sparse_batch import (
    CAUSAL,
    UNLIMITED,
    SparseBatch,
    check_batch,
)

SOURCE = "op-plugin docs and test: torch_npu.npu_lightning_indexer"
LIMITS = """query and key float16 or bfloat16, one dtype; weights of that dtype or float32; head
size 128; at most 64 query heads, one key head; key contiguous, in pages of 16 to 1024 tokens (a
multiple of 16), or as query; sparse_count from 1 to 2048, or a multiple of 1024 up to 8192;
sparse_mode 0 or 3; lengths int32. Where a query sees fewer keys than sparse_count, -1 follows
(the documentation does not say; the kernel's constants do). Which of equal scores is taken is not
documented: the earlier key is. Strided weights: as defined (AutoContiguous), vllm-ascend relies on
it."""
MISSING = "return_value (documented for training without pages only)"

NO_KEY = -1
HEAD_SIZE = 128
MOST_HEADS = 64
SPARSE_COUNTS = frozenset({*range(1, 2049), *range(3072, 8193, 1024)})


def choose_keys(scores: torch.Tensor, visible: torch.Tensor, count: int) -> torch.Tensor:
    """The positions of the ``count`` highest of each row of ``scores`` (queries, keys).

    Highest first; of equal ones the earlier first; NO_KEY behind them. int32 (queries, count).
    """
    num_queries, num_keys = scores.shape
    chosen = torch.full((num_queries, count), NO_KEY, dtype=torch.int32)
    kept = min(count, num_keys)
    hidden = scores.masked_fill(~visible, float("-inf"))
    order = hidden.sort(dim=-1, descending=True, stable=True).indices[:, :kept]
    order = order.masked_fill(~visible.gather(-1, order), NO_KEY)
    chosen[:, :kept] = order.to(torch.int32)
    return chosen


def index_scores(query: torch.Tensor, keys: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """sum over heads of weight * relu(query . key), float32 (queries, keys).

    query (queries, heads, D), keys (keys, D), weights (queries, heads).
    """
    num_queries, num_heads, size = query.shape
    if not num_queries or not keys.shape[0]:
        return torch.zeros(num_queries, keys.shape[0])
    products = query.float().reshape(-1, size) @ keys.float().T
    positive = products.relu_().view(num_queries, num_heads, -1)
    return torch.bmm(weights.float().unsqueeze(1), positive).squeeze(1)


@operator("npu_lightning_indexer", source=SOURCE, limits=LIMITS, missing=MISSING)
def npu_lightning_indexer(
    query: torch.Tensor,
    key: torch.Tensor,
    weights: torch.Tensor,
    *,
    actual_seq_lengths_query: torch.Tensor | None = None,
    actual_seq_lengths_key: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
    layout_query: str = "BSND",
    layout_key: str = "BSND",
    sparse_count: int = 2048,
    sparse_mode: int = CAUSAL,
    pre_tokens: int = UNLIMITED,
    next_tokens: int = UNLIMITED,
    return_value: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The positions of the keys that each query is to attend to, the best first.

    query (T, N, D) in TND or (B, S, N, D) in BSND, weights the same without D; key (blocks, block
    size, 1, D) in PA_BSND. Returns int32 positions in the request, (..., 1, sparse_count), and an
    empty tensor in the place of their scores.
    """
    if return_value:
        raise NotImplementedError(
            "emulated NPU: npu_lightning_indexer with return_value is not emulated; it is "
            "documented for training only. Call it without"
        )
    batch = SparseBatch(
        layout_query, layout_key, actual_seq_lengths_query, actual_seq_lengths_key, block_table
    )
    rows = query.flatten(0, -3)
    row_weights = weights.reshape(-1, query.shape[-2])
    chosen = torch.full((rows.shape[0], sparse_count), NO_KEY, dtype=torch.int32)
    for index, part in enumerate(batch.query_rows(query)):
        keys = batch.keys(key, index)
        scores = index_scores(rows[part], keys, row_weights[part])
        visible = batch.visible(sparse_mode, *scores.shape)
        chosen[part] = choose_keys(scores, visible, sparse_count)
    return chosen.view(*query.shape[:-2], 1, sparse_count), query.new_empty(0)


@npu_lightning_indexer.check
def check_lightning_indexer(given: Arguments) -> None:
    """Refuse what the documentation for A2 does not allow."""
    require_dtype("query", given.query, HALF_FLOATS)
    require_same_dtype(query=given.query, key=given.key)
    require_dtype("weights", given.weights, FLOATS)
    if given.weights.dtype != torch.float32:
        require_same_dtype(query=given.query, weights=given.weights)
    batch = SparseBatch(
        given.layout_query,
        given.layout_key,
        given.actual_seq_lengths_query,
        given.actual_seq_lengths_key,
        given.block_table,
    )
    check_batch(batch, given.query, given.key)
    # Others are copied (AutoContiguous in the kernel's definition); a cache would be too.
    require_contiguous("key", given.key)
    require_shape("weights", given.weights, given.query.shape[:-1])
    check_choice(given.query, given.key, given.sparse_count, given.sparse_mode)
    check_unlimited(given.pre_tokens, given.next_tokens)


def check_choice(
    query: torch.Tensor, key: torch.Tensor, sparse_count: int, sparse_mode: int
) -> None:
    """Refuse undocumented numbers of heads and keys, head sizes and modes."""
    for name, tensor in (("query", query), ("key", key)):
        size = tensor.shape[-1]
        require(size == HEAD_SIZE, f"{name} has head size {size}; it must be {HEAD_SIZE}")
    require_range("the number of query heads", query.shape[-2], 1, MOST_HEADS)
    require(
        sparse_count in SPARSE_COUNTS,
        f"sparse_count is {sparse_count}; it must be from 1 to 2048, or 3072, 4096, ... 8192",
    )
    require(sparse_mode in (0, CAUSAL), f"sparse_mode is {sparse_mode}; it must be 0 or 3")


def check_unlimited(pre_tokens: int, next_tokens: int) -> None:
    """Refuse any other pre_tokens and next_tokens than the default."""
    for name, value in (("pre_tokens", pre_tokens), ("next_tokens", next_tokens)):
        require(value == UNLIMITED, f"{name} is {value}; it must be {UNLIMITED}")


vllm_ascend_lightning_indexer = operator(
    "npu_lightning_indexer",
    namespace="_C_ascend",
    source=f"{SOURCE}; vllm-ascend: README of lightning_indexer",
    limits=LIMITS,
    missing=MISSING,
)(npu_lightning_indexer.kernel)
vllm_ascend_lightning_indexer.check(check_lightning_indexer)
