# SPDX-License-Identifier: Apache-2.0
"""The choice of compressed keys from 8-bit queries and keys, as vllm-ascend 0.30 asks for it."""

from __future__ import annotations

import torch

from emulated_npu.operators.binding import Arguments
from emulated_npu.operators.lightning_indexer import MOST_HEADS, check_choice
from emulated_npu.operators.lightning_indexer_quant import (
    MOST_KEYS,
    RATIOS,
    check_quantised,
    choose_compressed_keys,
)
from emulated_npu.operators.registry import operator
from emulated_npu.operators.requirements import require, require_dtype, require_range, require_shape
from emulated_npu.operators.sparse_batch import CAUSAL, PACKED, PAGED, SparseBatch, check_batch

INT8_PER_TOKEN_AND_HEAD = 2
"""The quant_mode of the devices that are emulated."""

PAGED_LAYOUT = "PA_BBND"
"""Pages [blocks, tokens, heads, size], which other operators call PA_BSND."""


@operator(
    "npu_quant_lightning_indexer_v2_metadata",
    namespace="_C_ascend",
    source="vllm-ascend 0.30: README of quant_lightning_indexer_v2_metadata",
    limits="""How the work is divided among cores is not documented and has no effect here: 1024
    zeros.""",
)
def npu_quant_lightning_indexer_v2_metadata(
    num_heads_q: int,
    num_heads_k: int,
    head_dim: int,
    topk: int,
    quant_mode: int,
    *,
    cu_seqlens_q: torch.Tensor | None = None,
    cu_seqlens_k: torch.Tensor | None = None,
    seqused_q: torch.Tensor | None = None,
    seqused_k: torch.Tensor | None = None,
    cmp_residual_k: torch.Tensor | None = None,
    batch_size: int = 0,
    max_seqlen_q: int = 0,
    max_seqlen_k: int = 0,
    layout_q: str = PACKED,
    layout_k: str = PAGED_LAYOUT,
    mask_mode: int = CAUSAL,
    cmp_ratio: int = 1,
    device: str = "npu",
) -> torch.Tensor:
    """How npu_quant_lightning_indexer_v2 divides its work, int32 (1024,)."""
    return torch.zeros(1024, dtype=torch.int32)


@npu_quant_lightning_indexer_v2_metadata.check
def _check_metadata(given: Arguments) -> None:
    _check_modes(given.quant_mode, given.mask_mode, given.cmp_ratio)
    require_range("topk", given.topk, 1, MOST_KEYS)
    require(given.num_heads_k == 1, f"num_heads_k is {given.num_heads_k}; it must be 1")
    require(given.head_dim == 128, f"head_dim is {given.head_dim}; it must be 128")
    if given.mask_mode == CAUSAL and given.cmp_ratio > 1:
        require(given.cmp_residual_k is not None, "cmp_residual_k is None; cmp_ratio needs it")


@operator(
    "npu_quant_lightning_indexer_v2",
    namespace="_C_ascend",
    source="vllm-ascend 0.30: README of quant_lightning_indexer_v2",
    limits="""As on A2 and A3: quant_mode 2 (query and key int8, weights and both scales float16);
    64 query heads of 128, one key head; keys in pages (PA_BBND) of 16 to 1024 compressed tokens (a
    multiple of 16), whose blocks may lie apart, with their scales; seqused_k compressed lengths,
    cmp_residual_k from 0 to cmp_ratio - 1; topk 1 to 2048; mask_mode 0 or 3. -1 and equal scores:
    as npu_lightning_indexer.""",
    missing="output_idx_offset, return_value, seqused_q, queries in BSND, keys without pages",
)
def npu_quant_lightning_indexer_v2(
    query: torch.Tensor,
    key: torch.Tensor,
    weights: torch.Tensor,
    query_dequant_scale: torch.Tensor,
    key_dequant_scale: torch.Tensor,
    topk: int,
    quant_mode: int,
    *,
    cu_seqlens_q: torch.Tensor | None = None,
    cu_seqlens_k: torch.Tensor | None = None,
    seqused_q: torch.Tensor | None = None,
    seqused_k: torch.Tensor | None = None,
    cmp_residual_k: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
    output_idx_offset: torch.Tensor | None = None,
    metadata: torch.Tensor | None = None,
    max_seqlen_q: int = -1,
    layout_q: str = PACKED,
    layout_k: str = PAGED_LAYOUT,
    mask_mode: int = CAUSAL,
    cmp_ratio: int = 4,
    return_value: int = 0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The topk compressed keys of each query with the largest scores.

    Of the scores sum over heads of weight * relu(query scale * key scale * query key), each query
    sees the keys that stand for cmp_ratio tokens at its position or before.

    Args:
        query: [tokens, 64, 128]; key: [blocks, tokens of a page, 1, 128].
        weights, query_dequant_scale: [tokens, 64]; key_dequant_scale: key's shape without 128.
        cu_seqlens_q: [requests + 1], begins with 0; seqused_k, cmp_residual_k: [requests].

    Returns:
        int32 positions in the request [tokens, 1, topk], -1 where there are fewer keys; and an
        empty tensor in the place of their scores.
    """
    if (
        (layout_q, layout_k) != (PACKED, PAGED_LAYOUT)
        or cu_seqlens_q is None
        or seqused_k is None
        or seqused_q is not None
        or output_idx_offset is not None
        or return_value
    ):
        raise NotImplementedError(
            "emulated NPU: npu_quant_lightning_indexer_v2 is emulated for queries in TND with "
            "cu_seqlens_q and paged keys with seqused_k, without seqused_q, output_idx_offset and "
            "return_value"
        )
    batch = SparseBatch(PACKED, PAGED, cu_seqlens_q[1:], seqused_k, block_table)
    lengths = seqused_k * cmp_ratio + (0 if cmp_residual_k is None else cmp_residual_k)
    chosen = choose_compressed_keys(
        batch, query, key, weights, (query_dequant_scale, key_dequant_scale), lengths,
        topk, mask_mode == CAUSAL, cmp_ratio,
    )  # fmt: skip
    return chosen, torch.empty(0)


@npu_quant_lightning_indexer_v2.check
def _check_choice(given: Arguments) -> None:
    _check_modes(given.quant_mode, given.mask_mode, given.cmp_ratio)
    require(given.metadata is not None, "metadata is None; it must be given")
    if given.cu_seqlens_q is None or given.seqused_k is None:
        return  # the kernel says what is missing
    starts = given.cu_seqlens_q
    require(int(starts[0]) == 0, f"cu_seqlens_q begins with {int(starts[0])}; it must be 0")
    batch = SparseBatch(PACKED, PAGED, starts[1:], given.seqused_k, given.block_table)
    check_batch(batch, given.query, given.key)
    check_choice(given.query, given.key, given.topk, CAUSAL)
    require_range("topk", given.topk, 1, MOST_KEYS)
    heads = given.query.shape[-2]
    require(heads == MOST_HEADS, f"query has {heads} heads; it must have {MOST_HEADS}")
    check_quantised(
        given.query, given.key, given.weights, given.query_dequant_scale, given.key_dequant_scale
    )
    if given.cmp_residual_k is not None:
        rest = given.cmp_residual_k
        require_dtype("cmp_residual_k", rest, (torch.int32,))
        require_shape("cmp_residual_k", rest, tuple(given.seqused_k.shape))
        require(
            bool(((rest >= 0) & (rest < given.cmp_ratio)).all()),
            f"cmp_residual_k {rest.tolist()} is not from 0 to {given.cmp_ratio - 1}",
        )


def _check_modes(quant_mode: int, mask_mode: int, ratio: int) -> None:
    require(
        quant_mode == INT8_PER_TOKEN_AND_HEAD,
        f"quant_mode is {quant_mode}; A2 and A3 have {INT8_PER_TOKEN_AND_HEAD}",
    )
    require(mask_mode in (0, CAUSAL), f"mask_mode is {mask_mode}; it must be 0 or {CAUSAL}")
    require(ratio in RATIOS, f"cmp_ratio is {ratio}; it must be a power of two up to 128")
