# SPDX-License-Identifier: Apache-2.0
"""The choice of keys from 8-bit queries and keys, which DeepSeek-V4 compresses as well."""

from __future__ import annotations

import torch

from emulated_npu.operators.binding import Arguments
from emulated_npu.operators.lightning_indexer import (
    MOST_HEADS,
    NO_KEY,
    check_choice,
    check_unlimited,
    choose_keys,
    index_scores,
)
from emulated_npu.operators.registry import operator
from emulated_npu.operators.requirements import (
    require,
    require_contiguous,
    require_dtype,
    require_range,
    require_shape,
)
from emulated_npu.operators.sparse_batch import (
    CAUSAL,
    PAGED,
    UNLIMITED,
    SparseBatch,
    check_batch,
)

PER_TOKEN_AND_HEAD = 0  # query_quant_mode, key_quant_mode
MOST_KEYS = 2048
RATIOS = frozenset(1 << exponent for exponent in range(8))  # cmp_ratio


@operator(
    "npu_lightning_indexer_quant",
    namespace="_C_ascend",
    source="op-plugin docs: torch_npu.npu_quant_lightning_indexer, which vllm-ascend's is named "
    "after; vllm-ascend: definition of the LightningIndexerQuant kernel",
    limits="""query and key int8, weights and both scales float16; head size 128; at most 64 query
    heads, one key head; keys in pages of 16 to 1024 tokens (a multiple of 16), or as query;
    sparse_count from 1 to 2048; sparse_mode 0 or 3; quant modes 0; lengths int32. -1 and equal
    scores: as npu_lightning_indexer.""",
)
def npu_lightning_indexer_quant(
    query: torch.Tensor,
    key: torch.Tensor,
    weights: torch.Tensor,
    query_dequant_scale: torch.Tensor,
    key_dequant_scale: torch.Tensor,
    *,
    actual_seq_lengths_query: torch.Tensor | None = None,
    actual_seq_lengths_key: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
    query_quant_mode: int = PER_TOKEN_AND_HEAD,
    key_quant_mode: int = PER_TOKEN_AND_HEAD,
    layout_query: str = "BSND",
    layout_key: str = "BSND",
    sparse_count: int = MOST_KEYS,
    sparse_mode: int = CAUSAL,
) -> torch.Tensor:
    """As npu_lightning_indexer, for query and key that are to be multiplied by their scales.

    query_dequant_scale (T, N) or (B, S, N); key_dequant_scale: key's shape without the head size.
    Returns int32 positions in the request, (..., 1, sparse_count).
    """
    batch = SparseBatch(
        layout_query, layout_key, actual_seq_lengths_query, actual_seq_lengths_key, block_table
    )
    rows = query.flatten(0, -3)
    # A scale is not negative, so it may be applied to the weight, behind the relu.
    row_weights = (weights.float() * query_dequant_scale.float()).view(-1, query.shape[-2])
    chosen = torch.full((rows.shape[0], sparse_count), NO_KEY, dtype=torch.int32)
    for index, part in enumerate(batch.query_rows(query)):
        scales = batch.keys(key_dequant_scale.unsqueeze(-1), index).float()
        scores = index_scores(rows[part], batch.keys(key, index), row_weights[part]) * scales.T
        visible = batch.visible(sparse_mode, *scores.shape)
        chosen[part] = choose_keys(scores, visible, sparse_count)
    return chosen.view(*query.shape[:-2], 1, sparse_count)


@npu_lightning_indexer_quant.check
def _check_quant(given: Arguments) -> None:
    batch = SparseBatch(
        given.layout_query,
        given.layout_key,
        given.actual_seq_lengths_query,
        given.actual_seq_lengths_key,
        given.block_table,
    )
    check_batch(batch, given.query, given.key)
    check_choice(given.query, given.key, given.sparse_count, given.sparse_mode)
    require_range("sparse_count", given.sparse_count, 1, MOST_KEYS)
    check_quantised(
        given.query, given.key, given.weights, given.query_dequant_scale, given.key_dequant_scale
    )
    for name, tensor in (("key", given.key), ("key_dequant_scale", given.key_dequant_scale)):
        require_contiguous(name, tensor)
    for name, mode in (
        ("query_quant_mode", given.query_quant_mode),
        ("key_quant_mode", given.key_quant_mode),
    ):
        require(mode == PER_TOKEN_AND_HEAD, f"{name} is {mode}; it must be 0")


def check_quantised(
    query: torch.Tensor,
    key: torch.Tensor,
    weights: torch.Tensor,
    query_dequant_scale: torch.Tensor,
    key_dequant_scale: torch.Tensor,
) -> None:
    """Refuse other dtypes and shapes than 8-bit query and key with a scale per token and head."""
    halves = {
        "weights": weights,
        "query_dequant_scale": query_dequant_scale,
        "key_dequant_scale": key_dequant_scale,
    }
    for name, tensor in (("query", query), ("key", key)):
        require(tensor.dtype == torch.int8, f"{name} is {tensor.dtype}; it must be torch.int8")
    for name, tensor in halves.items():
        require_dtype(name, tensor, (torch.float16,))
    for name in ("weights", "query_dequant_scale"):
        require_shape(name, halves[name], query.shape[:-1])
    require_shape("key_dequant_scale", key_dequant_scale, key.shape[:-1])


@operator(
    "npu_vllm_quant_lightning_indexer_metadata",
    namespace="_C_ascend",
    source="vllm-ascend: READMEs of vllm_quant_lightning_indexer and of its metadata",
    limits="""How the work is divided among cores is not documented and has no effect here: 1024
    zeros.""",
)
def npu_vllm_quant_lightning_indexer_metadata(
    num_heads_q: int,
    num_heads_k: int,
    head_dim: int,
    query_quant_mode: int,
    key_quant_mode: int,
    actual_seq_lengths_query: torch.Tensor | None = None,
    actual_seq_lengths_key: torch.Tensor | None = None,
    batch_size: int = 0,
    max_seqlen_q: int = 0,
    max_seqlen_k: int = 0,
    layout_query: str = "BSND",
    layout_key: str = "BSND",
    sparse_count: int = MOST_KEYS,
    sparse_mode: int = CAUSAL,
    pre_tokens: int = UNLIMITED,
    next_tokens: int = UNLIMITED,
    cmp_ratio: int = 1,
    device: str = "npu",
) -> torch.Tensor:
    """How npu_vllm_quant_lightning_indexer divides its work, int32 (1024,)."""
    return torch.zeros(1024, dtype=torch.int32)


@operator(
    "npu_vllm_quant_lightning_indexer",
    namespace="_C_ascend",
    source="vllm-ascend: README of vllm_quant_lightning_indexer; its kernel for which compressed "
    "keys a query sees, (position + 1) // cmp_ratio",
    limits="""query and key int8, weights and both scales float16; 64 query heads of 128, one key
    head; keys in pages (PA_BSND) of 16 to 1024 compressed tokens (a multiple of 16), which may be
    strided in the first axis as vllm-ascend's are; key lengths before compression; cmp_ratio a
    power of two up to 128; sparse_count from 1 to 2048; metadata int32 of 1024. -1 and equal
    scores: as npu_lightning_indexer.""",
    missing="return_value, key layouts without pages",
)
def npu_vllm_quant_lightning_indexer(
    query: torch.Tensor,
    key: torch.Tensor,
    weights: torch.Tensor,
    query_dequant_scale: torch.Tensor,
    key_dequant_scale: torch.Tensor,
    query_quant_mode: int = PER_TOKEN_AND_HEAD,
    key_quant_mode: int = PER_TOKEN_AND_HEAD,
    actual_seq_lengths_query: torch.Tensor | None = None,
    actual_seq_lengths_key: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
    metadata: torch.Tensor | None = None,
    layout_query: str = "BSND",
    layout_key: str = "BSND",
    sparse_count: int = MOST_KEYS,
    sparse_mode: int = CAUSAL,
    pre_tokens: int = UNLIMITED,
    next_tokens: int = UNLIMITED,
    cmp_ratio: int = 1,
    return_value: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As npu_lightning_indexer_quant; each key stands for cmp_ratio tokens."""
    if return_value or layout_key != PAGED or actual_seq_lengths_key is None:
        raise NotImplementedError(
            "emulated NPU: npu_vllm_quant_lightning_indexer is emulated for paged keys with their "
            "lengths, without return_value"
        )
    compressed = actual_seq_lengths_key // cmp_ratio
    batch = SparseBatch(layout_query, layout_key, actual_seq_lengths_query, compressed, block_table)
    factors = (query_dequant_scale, key_dequant_scale)
    chosen = choose_compressed_keys(
        batch, query, key, weights, factors, actual_seq_lengths_key,
        sparse_count, sparse_mode == CAUSAL, cmp_ratio,
    )  # fmt: skip
    return chosen, torch.empty(0)


def choose_compressed_keys(
    batch: SparseBatch,
    query: torch.Tensor,
    key: torch.Tensor,
    weights: torch.Tensor,
    factors: tuple[torch.Tensor, torch.Tensor],
    lengths: torch.Tensor,
    count: int,
    causal: bool,
    ratio: int,
) -> torch.Tensor:
    """int32 positions of compressed keys in the request, (..., 1, count).

    factors: the scales of query and key. lengths: of the requests, before compression. A query sees
    the keys whose ``ratio`` tokens are all at its position or before.
    """
    query_factors, key_factors = factors
    rows = query.flatten(0, -3)
    row_weights = (weights.float() * query_factors.float()).view(-1, query.shape[-2])
    chosen = torch.full((rows.shape[0], count), NO_KEY, dtype=torch.int32)
    for index, part in enumerate(batch.query_rows(query)):
        scales = batch.keys(key_factors.unsqueeze(-1), index).float()
        scores = index_scores(rows[part], batch.keys(key, index), row_weights[part]) * scales.T
        num_queries, num_keys = scores.shape
        length = int(lengths[index])
        ends = torch.arange(length - num_queries, length) + 1
        limits = ends // ratio if causal else torch.full((num_queries,), num_keys)
        visible = torch.arange(num_keys) < limits.unsqueeze(1)
        chosen[part] = choose_keys(scores, visible, count)
    return chosen.view(*query.shape[:-2], 1, count)


@npu_vllm_quant_lightning_indexer.check
def _check_vllm_quant(given: Arguments) -> None:
    lengths = (
        None
        if given.actual_seq_lengths_key is None
        else given.actual_seq_lengths_key // given.cmp_ratio
    )
    batch = SparseBatch(
        given.layout_query,
        given.layout_key,
        given.actual_seq_lengths_query,
        lengths,
        given.block_table,
    )
    check_batch(batch, given.query, given.key)
    check_choice(given.query, given.key, given.sparse_count, given.sparse_mode)
    check_unlimited(given.pre_tokens, given.next_tokens)
    require_range("sparse_count", given.sparse_count, 1, MOST_KEYS)
    require(
        given.query.shape[-2] == MOST_HEADS,
        f"query has {given.query.shape[-2]} heads; it must have 64",
    )
    require(
        given.cmp_ratio in RATIOS,
        f"cmp_ratio is {given.cmp_ratio}; it must be a power of two up to 128",
    )
    require(given.metadata is not None, "metadata is None; it must be given")
    check_quantised(
        given.query, given.key, given.weights, given.query_dequant_scale, given.key_dequant_scale
    )
    for name, mode in (
        ("query_quant_mode", given.query_quant_mode),
        ("key_quant_mode", given.key_quant_mode),
    ):
        require(mode == PER_TOKEN_AND_HEAD, f"{name} is {mode}; it must be 0")
