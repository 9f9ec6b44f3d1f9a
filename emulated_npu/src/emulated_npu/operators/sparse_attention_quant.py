# SPDX-License-Identifier: Apache-2.0
"""Attention to chosen keys of 8 bits: npu_kv_quant_sparse_flash_attention of vllm-ascend.

Since vllm-ascend 0.30 its name ends with _vllm.

A cached token is one row of bytes: the latent as int8, the rotary key in the query's dtype, and a
float32 scale for each tile of the latent.
"""

from __future__ import annotations

import torch

from emulated_npu.operators.binding import Arguments
from emulated_npu.operators.registry import operator
from emulated_npu.operators.requirements import (
    HALF_FLOATS,
    require,
    require_contiguous,
    require_dtype,
    require_shape,
)
from emulated_npu.operators.sparse_attention import (
    HEAD_COUNTS,
    LATENT_SIZE,
    MLA_ABSORBED,
    ROPE_SIZE,
    ChosenAttention,
    check_modes,
)
from emulated_npu.operators.sparse_batch import (
    CAUSAL,
    UNLIMITED,
    SparseBatch,
    check_batch,
)

PER_TILE = 2  # key_quant_mode, value_quant_mode
COMBINED = 1  # quant_scale_repo_mode: scales lie behind the data
TILE_SIZE = 128
ROPE_BYTES = 2 * ROPE_SIZE
SCALE_BYTES = 4 * LATENT_SIZE // TILE_SIZE
PACKED_SIZE = LATENT_SIZE + ROPE_BYTES + SCALE_BYTES
BLOCK_SIZES = frozenset((1, 2, 4, 8, 16))


def unpack(rows: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Keys (tokens, 576) in ``dtype``, the dequantised latent first, of int8 rows (tokens, 656)."""
    latent, rope, scales = rows.split((LATENT_SIZE, ROPE_BYTES, SCALE_BYTES), dim=-1)
    tiles = latent.float().unflatten(-1, (-1, TILE_SIZE))
    # A view of other bytes asks for its own storage offset to be a multiple of theirs: copy.
    values = tiles * scales.clone().view(torch.float32).unsqueeze(-1)
    return torch.cat((values.flatten(-2).to(dtype), rope.clone().view(dtype)), dim=-1)


@operator(
    "npu_kv_quant_sparse_flash_attention",
    namespace="_C_ascend",
    source="vllm-ascend: README and definition of kv_quant_sparse_flash_attention",
    limits="""query float16 or bfloat16 of 576 (latent 512, rope 64), contiguous, with 1, 2, 4 ...
    128 heads; key int8 of 656 bytes (512, rope of 128 bytes, 4 float32 scales), one head,
    contiguous, in pages of 16 to 1024 tokens (a multiple of 16), or as query; key_quant_mode and
    value_quant_mode 2, quant_scale_repo_mode 1, tile_size 128, rope_head_dim 64; sparse_block_size
    a power of two up to 16 that divides the page; the rest as npu_sparse_flash_attention.""",
)
def npu_kv_quant_sparse_flash_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    sparse_indices: torch.Tensor,
    scale_value: float,
    *,
    key_quant_mode: int = 1,
    value_quant_mode: int = 1,
    key_dequant_scale: torch.Tensor | None = None,
    value_dequant_scale: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
    actual_seq_lengths_query: torch.Tensor | None = None,
    actual_seq_lengths_kv: torch.Tensor | None = None,
    sparse_block_size: int = 1,
    layout_query: str = "BSND",
    layout_kv: str = "BSND",
    sparse_mode: int = CAUSAL,
    pre_tokens: int = UNLIMITED,
    next_tokens: int = UNLIMITED,
    attention_mode: int = MLA_ABSORBED,
    quant_scale_repo_mode: int = COMBINED,
    tile_size: int = TILE_SIZE,
    rope_head_dim: int = ROPE_SIZE,
    return_softmax_lse: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """As npu_sparse_flash_attention, on keys that are dequantised to query's dtype first.

    query (T, N, 576) in TND or (B, S, N, 576) in BSND; key (blocks, block size, 1, 656) in PA_BSND.
    Values are the keys' latents (attention_mode 2: keys and values are one); value is not read.
    """
    batch = SparseBatch(
        layout_query, layout_kv, actual_seq_lengths_query, actual_seq_lengths_kv, block_table
    )

    def keys_and_values(index: int) -> tuple[torch.Tensor, torch.Tensor]:
        keys = unpack(batch.keys(key, index), query.dtype)
        return keys, keys[:, :LATENT_SIZE]

    call = ChosenAttention(batch, scale_value, sparse_mode, sparse_block_size, return_softmax_lse)
    return call.run(query, sparse_indices, keys_and_values)


npu_kv_quant_sparse_flash_attention_vllm = operator(
    "npu_kv_quant_sparse_flash_attention_vllm",
    namespace="_C_ascend",
    source="vllm-ascend 0.30: README of kv_quant_sparse_flash_attention_vllm",
    limits="as npu_kv_quant_sparse_flash_attention, in whose place it is",
)(npu_kv_quant_sparse_flash_attention.kernel)


@npu_kv_quant_sparse_flash_attention_vllm.check
@npu_kv_quant_sparse_flash_attention.check
def _check_kv_quant(given: Arguments) -> None:
    batch = SparseBatch(
        given.layout_query,
        given.layout_kv,
        given.actual_seq_lengths_query,
        given.actual_seq_lengths_kv,
        given.block_table,
    )
    check_batch(batch, given.query, given.key)
    _check_tensors(given.query, given.key, given.value)
    check_modes(given, BLOCK_SIZES)
    for name, only in (
        ("key_quant_mode", PER_TILE),
        ("value_quant_mode", PER_TILE),
        ("quant_scale_repo_mode", COMBINED),
        ("tile_size", TILE_SIZE),
        ("rope_head_dim", ROPE_SIZE),
    ):
        require(
            getattr(given, name) == only, f"{name} is {getattr(given, name)}; it must be {only}"
        )
    for name in ("key_dequant_scale", "value_dequant_scale"):
        require(getattr(given, name) is None, f"{name} is reserved; it must be None")


def _check_tensors(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
    require_dtype("query", query, HALF_FLOATS)
    for name, tensor in (("key", key), ("value", value)):
        require_dtype(name, tensor, (torch.int8,))
        require_contiguous(name, tensor)
    require_contiguous("query", query)
    require_shape("query", query, (*query.shape[:-1], LATENT_SIZE + ROPE_SIZE))
    require_shape("key", key, (*key.shape[:-1], PACKED_SIZE))
    require(
        query.shape[-2] in HEAD_COUNTS,
        f"query has {query.shape[-2]} heads; it must have 1, 2, 4, 8, 16, 32, 64 or 128",
    )
