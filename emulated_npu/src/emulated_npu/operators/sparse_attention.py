# SPDX-License-Identifier: Apache-2.0
"""Attention to chosen keys: npu_sparse_flash_attention of vllm-ascend."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from emulated_npu.operators.attention_core import attend
from emulated_npu.operators.binding import Arguments
from emulated_npu.operators.lightning_indexer import NO_KEY, check_unlimited
from emulated_npu.operators.registry import operator
from emulated_npu.operators.requirements import (
    HALF_FLOATS,
    require,
    require_contiguous,
    require_dtype,
    require_same_dtype,
    require_shape,
)
from emulated_npu.operators.sparse_batch import (
    CAUSAL,
    PAGED,
    UNLIMITED,
    SparseBatch,
    check_batch,
)

SOURCE = "op-plugin docs and test: torch_npu.npu_sparse_flash_attention"
LIMITS = """float16 or bfloat16, one dtype; latent 512, rope 64, both given; 1, 2, 4 ... 128 query
heads, one key head; caches contiguous, in pages of 16 to 1024 tokens (a multiple of 16), or as
query; sparse_indices int32, in each row the valid ones first; sparse_block_size a power of two up
to 128 that divides the page; sparse_mode 0 or 3; attention_mode 2; lengths int32. Queries may be
strided: the kernel is defined with AutoContiguous, vllm-ascend relies on it."""
MISSING = "return_softmax_lse with pages is not documented; vllm-ascend asks for it, so it is given"

LATENT_SIZE = 512
ROPE_SIZE = 64
HEAD_COUNTS = frozenset(1 << exponent for exponent in range(8))
BLOCK_SIZES = frozenset(1 << exponent for exponent in range(8))
MLA_ABSORBED = 2  # attention_mode


def chosen_mask(chosen: torch.Tensor, num_keys: int, block_size: int) -> torch.Tensor:
    """Boolean (queries, keys), true where ``chosen`` (queries, count) names the key's block.

    A row ends at its first NO_KEY. Block ``b`` holds the keys from b * block_size on.
    """
    num_blocks = -(-num_keys // block_size)
    valid = (chosen != NO_KEY).cumprod(-1).bool()
    # The last column takes what is not valid and is cut off.
    columns = torch.where(valid, chosen.long(), num_blocks)
    mask = torch.zeros(chosen.shape[0], num_blocks + 1, dtype=torch.bool)
    mask.scatter_(1, columns, True)
    return mask[:, :num_blocks].repeat_interleave(block_size, 1)[:, :num_keys]


@dataclass(frozen=True)
class ChosenAttention:
    """Attention to chosen keys, wherever they come from. Fields: the operators' arguments."""

    batch: SparseBatch
    scale_value: float
    sparse_mode: int
    sparse_block_size: int
    return_softmax_lse: bool

    def run(
        self,
        query: torch.Tensor,
        sparse_indices: torch.Tensor,
        keys_and_values: Callable[[int], tuple[torch.Tensor, torch.Tensor]],
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The output (as query, with the size of values), maxima and sums (see the operators).

        ``keys_and_values(index)`` gives those of a request, (key length, features).
        """
        rows = query.flatten(0, -3)
        chosen = sparse_indices.reshape(rows.shape[0], -1)
        output = rows.new_zeros(*rows.shape[:-1], LATENT_SIZE)
        row_max, row_sum = (torch.zeros(rows.shape[:-1]) for _ in range(2))
        for index, part in enumerate(self.batch.query_rows(query)):
            keys, values = keys_and_values(index)
            sizes = rows[part].shape[0], keys.shape[0]
            visible = self.batch.visible(self.sparse_mode, *sizes)
            visible &= chosen_mask(chosen[part], sizes[1], self.sparse_block_size)
            result = attend(
                rows[part], keys.unsqueeze(1), values.unsqueeze(1), self.scale_value, visible
            )
            output[part] = result.output.to(output.dtype)
            row_max[part], row_sum[part] = result.row_max, result.row_sum
        output = output.view(*query.shape[:-1], -1)
        if not self.return_softmax_lse:
            return output, torch.empty(0), torch.empty(0)
        axis = query.dim() - 3
        highest = row_max.view(query.shape[:-1]).unsqueeze(axis)
        return output, highest, row_sum.view(query.shape[:-1]).unsqueeze(axis)


@operator("npu_sparse_flash_attention", namespace="_C_ascend", source=f"{SOURCE}; vllm-ascend: "
          "README of sparse_flash_attention", limits=LIMITS, missing=MISSING)  # fmt: skip
def npu_sparse_flash_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    sparse_indices: torch.Tensor,
    scale_value: float,
    *,
    block_table: torch.Tensor | None = None,
    actual_seq_lengths_query: torch.Tensor | None = None,
    actual_seq_lengths_kv: torch.Tensor | None = None,
    query_rope: torch.Tensor | None = None,
    key_rope: torch.Tensor | None = None,
    sparse_block_size: int = 1,
    layout_query: str = "BSND",
    layout_kv: str = "BSND",
    sparse_mode: int = CAUSAL,
    pre_tokens: int = UNLIMITED,
    next_tokens: int = UNLIMITED,
    attention_mode: int = MLA_ABSORBED,
    return_softmax_lse: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Attention of each query to the keys that its row of sparse_indices names.

    query (T, N, 512) in TND or (B, S, N, 512) in BSND, query_rope the same with 64; key and value
    (blocks, block size, 1, 512) in PA_BSND, key_rope with 64; sparse_indices (..., 1, count).
    Returns the output (as query) and the rows' maxima and sums of exponentials, float32
    (1, T, N), or (B, 1, S, N) for BSND; empty if they were not asked for.
    """
    if query_rope is None or key_rope is None:
        raise NotImplementedError(
            "emulated NPU: npu_sparse_flash_attention without query_rope and key_rope is not "
            "emulated; it is documented for MLA (attention_mode 2) only"
        )
    batch = SparseBatch(
        layout_query, layout_kv, actual_seq_lengths_query, actual_seq_lengths_kv, block_table
    )

    def keys_and_values(index: int) -> tuple[torch.Tensor, torch.Tensor]:
        keys = torch.cat((batch.keys(key, index), batch.keys(key_rope, index)), -1)
        return keys, batch.keys(value, index)

    call = ChosenAttention(batch, scale_value, sparse_mode, sparse_block_size, return_softmax_lse)
    return call.run(torch.cat((query, query_rope), -1), sparse_indices, keys_and_values)


@npu_sparse_flash_attention.check
def check_sparse_flash_attention(given: Arguments) -> None:
    """Refuse what the documentation for A2 does not allow."""
    batch = SparseBatch(
        given.layout_query,
        given.layout_kv,
        given.actual_seq_lengths_query,
        given.actual_seq_lengths_kv,
        given.block_table,
    )
    check_batch(batch, given.query, given.key)
    check_tensors(given.query, given.key, given.value, given.query_rope, given.key_rope)
    check_modes(given, BLOCK_SIZES)


def check_modes(given: Arguments, block_sizes: frozenset[int]) -> None:
    """Refuse what is not documented of the arguments that all attention to chosen keys has."""
    require(
        given.attention_mode == MLA_ABSORBED,
        f"attention_mode is {given.attention_mode}; it must be 2 (MLA)",
    )
    check_chosen(given.sparse_indices, given.query)
    require(
        given.sparse_mode in (0, CAUSAL), f"sparse_mode is {given.sparse_mode}; it must be 0 or 3"
    )
    check_unlimited(given.pre_tokens, given.next_tokens)
    require(
        given.sparse_block_size in block_sizes
        and (given.layout_kv != PAGED or given.key.shape[1] % given.sparse_block_size == 0),
        f"sparse_block_size is {given.sparse_block_size}; it must be a power of two up to "
        f"{max(block_sizes)} that divides the block size",
    )


def check_tensors(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    query_rope: torch.Tensor | None,
    key_rope: torch.Tensor | None,
) -> None:
    """Refuse undocumented dtypes, head counts and sizes of queries and keys."""
    if query_rope is None or key_rope is None:
        require(False, "query_rope or key_rope is None; attention_mode 2 (MLA) needs both")
        return
    tensors = {
        "query": query, "key": key, "value": value, "query_rope": query_rope, "key_rope": key_rope
    }  # fmt: skip
    require_dtype("query", query, HALF_FLOATS)
    require_same_dtype(**tensors)
    # Strided queries are copied (AutoContiguous in the kernel's definition); a cache would be too.
    for name in ("key", "value", "key_rope"):
        require_contiguous(name, tensors[name])
    require_shape("query", query, (*query.shape[:-1], LATENT_SIZE))
    require_shape("query_rope", query_rope, (*query.shape[:-1], ROPE_SIZE))
    require_shape("key", key, (*key.shape[:-1], LATENT_SIZE))
    require_shape("value", value, key.shape)
    require_shape("key_rope", key_rope, (*key.shape[:-1], ROPE_SIZE))
    require(
        query.shape[-2] in HEAD_COUNTS,
        f"query has {query.shape[-2]} heads; it must have 1, 2, 4, 8, 16, 32, 64 or 128",
    )


def check_chosen(sparse_indices: torch.Tensor, query: torch.Tensor) -> None:
    """Refuse indices of another shape or dtype, and rows with a valid one behind an invalid one."""
    require_dtype("sparse_indices", sparse_indices, (torch.int32,))
    require_contiguous("sparse_indices", sparse_indices)
    require_shape("sparse_indices", sparse_indices, (*query.shape[:-2], 1, None))
    require(sparse_indices.shape[-1] > 0, "sparse_indices names no key; its last axis is empty")
    valid = sparse_indices != NO_KEY
    require(
        bool((valid[..., 1:] <= valid[..., :-1]).all()),
        "a row of sparse_indices has a valid index behind an invalid one (-1); valid ones come "
        "first",
    )
