# SPDX-License-Identifier: Apache-2.0
"""Checks of sequence lengths and block tables of npu_fused_infer_attention_score.

Source: op-plugin docs of the two versions, sections on TND and on page attention.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from emulated_npu.operators.attention_call import FusedInferCall
from emulated_npu.operators.attention_paging import cache_block_size
from emulated_npu.operators.requirements import (
    require,
    require_contiguous,
    require_dtype,
    require_multiple,
    require_range,
    require_rank,
)

LARGEST_PACKED_BATCH = 4096
LONGEST_DECODE = 262144
LATENT_SIZE = 512  # head size of the absorbed form of MLA: key and value are the latent
LATENT_QUERY_LIMIT = 16  # queries of one request in that form


def check_lengths(call: FusedInferCall) -> None:
    """Query and kv lengths: given where they must be, in order, and within their tensors."""
    if call.layout.packed:
        _check_packed_lengths(call)
    else:
        _check_batch_lengths(call)


def check_cumulative(name: str, ends: Sequence[int], total: int | None) -> None:
    """Refuse cumulative lengths that fall, are negative, or do not end at `total`."""
    previous = 0
    for end in ends:
        require(
            end >= previous,
            f"{name} {list(ends)} must be cumulative: each at least the one before, none negative",
        )
        previous = end
    if total is not None:
        require(
            previous == total,
            f"{name} ends at {previous}; the tensor has {total} tokens. They must be equal: slice "
            f"the tensor or pad the lengths",
        )


def _check_packed_lengths(call: FusedInferCall) -> None:
    layout = call.layout
    ends, kv_lengths = call.query_lengths, call.kv_lengths
    if ends is None or kv_lengths is None:
        require(
            False,
            f"layout {call.input_layout} needs the query lengths and the kv lengths; one is None",
        )
        return
    require_range("the number of query lengths", len(ends), 1, LARGEST_PACKED_BATCH)
    require(
        len(kv_lengths) == len(ends),
        f"{len(kv_lengths)} kv lengths for {len(ends)} query lengths; there must be as many",
    )
    check_cumulative("query lengths", ends, layout.num_tokens(call.query))
    if call.paged:
        require(min(kv_lengths) >= 0, f"kv lengths {kv_lengths} must not be negative")
    else:
        check_cumulative("kv lengths", kv_lengths, layout.num_tokens(call.key))
    if call.head_size == LATENT_SIZE:
        # Not in the documentation; vllm-ascend 0.23.0 pads its requests to keep to it.
        longest = max(end - start for start, end in zip([0, *ends[:-1]], ends, strict=True))
        require(
            longest <= LATENT_QUERY_LIMIT,
            f"a request has {longest} queries; head size 512 (MLA) allows {LATENT_QUERY_LIMIT}",
        )


def _check_batch_lengths(call: FusedInferCall) -> None:
    layout = call.layout
    batch_size, width = call.batch_size, layout.sequence_length(call.query)
    require_range("the batch size", batch_size, 0, 65536)
    if width > 1:
        _check_each("query lengths", call.query_lengths, batch_size, width)
    if call.paged:
        _check_each("kv lengths", call.kv_lengths, batch_size, None)
        return
    kv_width = layout.sequence_length(call.key)
    require(
        layout.batch_size(call.key) == batch_size,
        f"key (shape {tuple(call.key.shape)}) has batch {layout.batch_size(call.key)}; query has "
        f"{batch_size}",
    )
    if width == 1:
        require_range("the kv length (one query)", kv_width, 0, LONGEST_DECODE)
    _check_each("kv lengths", call.kv_lengths, batch_size, kv_width)


def _check_each(
    name: str, lengths: Sequence[int] | None, batch_size: int, longest: int | None
) -> None:
    if lengths is None:
        return
    require(
        len(lengths) == 1 or len(lengths) >= batch_size,
        f"{len(lengths)} {name} for a batch of {batch_size}; give one, or one for each request",
    )
    for length in lengths[:batch_size]:
        require(
            length >= 0 and (longest is None or length <= longest),
            f"{name} {list(lengths)} must be from 0 to {longest}",
        )


def check_block_table(call: FusedInferCall) -> None:
    """dtype, shape and block size of a paged call."""
    table, lengths = call.block_table, call.kv_lengths
    if table is None:
        return
    require_dtype("block_table", table, (torch.int32,))
    require_rank("block_table", table, 2)
    require_contiguous("block_table", table)
    if lengths is None:
        require(False, "the kv lengths are None; a block_table needs them")
        return
    require(
        table.shape[0] == call.batch_size,
        f"block_table has {table.shape[0]} rows; the batch has {call.batch_size} requests",
    )
    _check_block_size(call)
    capacity = table.shape[1] * call.block_size
    longest = max(lengths[: call.batch_size])
    require(
        longest <= capacity,
        f"the longest kv length is {longest}; block_table holds {table.shape[1]} blocks of "
        f"{call.block_size} tokens",
    )


def _check_block_size(call: FusedInferCall) -> None:
    size = call.block_size
    if call.layout.packed or call.query_rope is not None:
        require_range("block_size", size, 16, 1024)
        require_multiple("block_size", size, 16)
    elif call.layout.sequence_length(call.query) > 1:
        require_range("block_size", size, 128, 512)
        require_multiple("block_size", size, 128)
    else:
        require_range("block_size", size, 16, 512)
        require_multiple("block_size", size, 16)
    for name, cache in (("key", call.key), ("value", call.value), ("key_rope", call.key_rope)):
        if cache is not None:
            require(
                cache_block_size(cache) == size,
                f"block_size is {size}; {name} (shape {tuple(cache.shape)}) has blocks of "
                f"{cache_block_size(cache)} tokens",
            )
            require(
                cache.shape[0] == call.key.shape[0],
                f"{name} has {cache.shape[0]} blocks; key has {call.key.shape[0]}",
            )
