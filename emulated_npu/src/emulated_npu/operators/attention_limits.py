# SPDX-License-Identifier: Apache-2.0
"""What npu_fused_infer_attention_score, v1 and v2, documents as allowed on Atlas A2.

Source: op-plugin docs of the two versions, their sections on constraints. Where vllm-ascend 0.23.0
runs more than that on hardware, the hardware is followed; each such place says so.
"""

from __future__ import annotations

import torch

from emulated_npu.operators.attention_antiquant import check_quantised
from emulated_npu.operators.attention_call import FusedInferCall
from emulated_npu.operators.attention_full_quant import check_fully_quantised
from emulated_npu.operators.attention_lengths import (
    LATENT_QUERY_LIMIT,
    LATENT_SIZE,
    check_block_table,
    check_lengths,
)
from emulated_npu.operators.attention_mask import check_mask
from emulated_npu.operators.attention_paging import cache_head_size
from emulated_npu.operators.cache_strides import require_blocks
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

LAYOUTS = (
    "BSH", "BSND", "BNSD", "BNSD_BSND", "BSH_NBSD", "BSND_NBSD", "BNSD_NBSD",
    "TND", "TND_NTD", "NTD", "NTD_TND",
)  # fmt: skip
LATENT_LAYOUTS = (
    "BSH", "BSND", "BNSD", "BNSD_NBSD", "BSND_NBSD", "BSH_NBSD", "TND", "TND_NTD"
)  # fmt: skip
ROPE_LAYOUTS = ("BSH", "BSND", "TND", "BNSD", "NTD", "BNSD_BSND", "NTD_TND")
SINK_LAYOUTS = ("TND", "NTD_TND")
ROPE_SIZE = 64
# (query and key head size, value head size) in packed layouts. 256 is hardware-proven
# (Qwen3-Next in vllm-ascend 0.23.0), and so is 64 with grouped heads (GPT-OSS), documented for
# ungrouped heads only.
PACKED_HEAD_SIZES = ((64, 64), (128, 128), (192, 128), (192, 192), (256, 256))


def check_call(call: FusedInferCall) -> None:
    """Raise OperatorArgumentError for what Atlas A2 does not document or show."""
    require(
        call.input_layout in LAYOUTS,
        f"input_layout is {call.input_layout!r}; it must be one of {', '.join(LAYOUTS)}",
    )
    _check_dtypes(call)
    _check_ranks(call)
    _check_heads(call)
    _check_contiguity(call)
    if call.query_rope is not None or call.key_rope is not None:
        _check_rope(call)
    else:
        _check_head_sizes(call)
    _check_sequence(call)
    check_lengths(call)
    if call.paged:
        check_block_table(call)
    check_mask(call)
    _check_sink(call)


def _check_dtypes(call: FusedInferCall) -> None:
    if call.fully_quantised:
        check_fully_quantised(call)
        return
    if call.quantised:
        check_quantised(call)
        return
    require_dtype("query", call.query, HALF_FLOATS)
    require_same_dtype(
        query=call.query,
        key=call.key,
        value=call.value,
        query_rope=call.query_rope,
        key_rope=call.key_rope,
    )


def _check_ranks(call: FusedInferCall) -> None:
    rank = call.layout.rank
    require_rank("query", call.query, rank)
    # A paged cache is (blocks, block size, H), (blocks, N, block size, D) or NZ; the
    # documentation gives the second to BNSD and the packed layouts only.
    paged_ranks: tuple[int, ...] = (3,) if call.input_layout.startswith(("BSH", "BSND")) else (3, 4)
    if call.query_rope is not None or call.quantised:
        paged_ranks = (3, 4, 5)
    for name, tensor in (("key", call.key), ("value", call.value)):
        require_rank(name, tensor, paged_ranks if call.paged else rank)


def _check_heads(call: FusedInferCall) -> None:
    require_range("the number of query heads", call.num_heads, 1, 256)
    require_range("num_key_value_heads", call.num_kv_heads, 1, 256)
    require(
        call.num_heads % call.num_kv_heads == 0,
        f"{call.num_heads} query heads are not a multiple of num_key_value_heads "
        f"{call.num_kv_heads}",
    )
    ratio = call.num_heads // call.num_kv_heads
    require(ratio <= 64, f"{ratio} query heads for each kv head; at most 64 are allowed")
    layout = call.layout
    found = layout.num_heads(call.query, call.num_heads)
    require(
        found == call.num_heads,
        f"query (shape {tuple(call.query.shape)}) has {found} heads in layout "
        f"{call.input_layout}; the call says {call.num_heads}",
    )
    for name, tensor in (("key", call.key), ("value", call.value)):
        _check_kv_heads(call, name, tensor)


def _check_kv_heads(call: FusedInferCall, name: str, tensor: torch.Tensor) -> None:
    if call.paged:
        found = tensor.shape[1] if tensor.dim() > 3 else call.num_kv_heads
    else:
        found = call.layout.num_heads(tensor, call.num_kv_heads)
    require(
        found == call.num_kv_heads,
        f"{name} (shape {tuple(tensor.shape)}) has {found} heads; num_key_value_heads is "
        f"{call.num_kv_heads}",
    )
    if call.paged and tensor.dim() == 3:
        require_multiple(f"the last dimension of {name}", tensor.shape[2], call.num_kv_heads)
        require(
            tensor.shape[2] <= 65535,
            f"{name} has heads x head size {tensor.shape[2]}; a cache of the form (blocks, block "
            f"size, heads x head size) allows 65535. Use (blocks, heads, block size, head size)",
        )


def _check_contiguity(call: FusedInferCall) -> None:
    # Documented for all tensors. vllm-ascend 0.23.0 passes strided slices for query and
    # query_rope (MLA), and for key and value of a prefill without cache (sliding window), on
    # hardware: those pass here. A cache must be contiguous, but see cache_strides.
    if call.paged:
        require_cache = require_contiguous if call.query_rope is not None else require_blocks
        require_cache("key", call.key)
        require_cache("value", call.value)
    for name, tensor in (("key_rope", call.key_rope), ("atten_mask", call.mask)):
        if tensor is not None:
            require_contiguous(name, tensor)


def _sizes(call: FusedInferCall) -> tuple[int, int, int]:
    """Head sizes of query, key and value."""

    def kv_size(tensor: torch.Tensor) -> int:
        if call.paged:
            return cache_head_size(tensor, call.num_kv_heads)
        return call.layout.head_size(tensor, call.num_kv_heads)

    return call.head_size, kv_size(call.key), kv_size(call.value)


def _check_head_sizes(call: FusedInferCall) -> None:
    query_size, key_size, value_size = _sizes(call)
    require(
        query_size == key_size,
        f"the head size of query is {query_size}, that of key {key_size}; they must be equal",
    )
    if call.layout.packed:
        _check_packed_head_sizes(call, query_size, value_size)
        return
    for name, size in (("query and key", query_size), ("value", value_size)):
        require_range(f"the head size of {name}", size, 16, 512)
        require_multiple(f"the head size of {name}", size, 16)
    require(
        query_size == value_size,
        f"the head size of value is {value_size}, that of key {key_size}; layout "
        f"{call.input_layout} needs them equal",
    )


def _check_packed_head_sizes(call: FusedInferCall, query_size: int, value_size: int) -> None:
    require(
        call.input_layout != "TND_NTD",
        "TND_NTD without query_rope and key_rope is not documented; use TND",
    )
    allowed = ", ".join(f"{size}/{other}" for size, other in PACKED_HEAD_SIZES)
    require(
        (query_size, value_size) in PACKED_HEAD_SIZES,
        f"head sizes (query and key / value) are {query_size}/{value_size}; layout "
        f"{call.input_layout} allows {allowed}. Use another head_dim",
    )
    grouped = call.num_heads != call.num_kv_heads
    require(
        value_size != 192 or not (grouped or call.paged or "NTD" in call.input_layout),
        "value head size 192 needs layout TND, as many kv heads as query heads and no "
        "block_table; use value head size 128",
    )


def _check_rope(call: FusedInferCall) -> None:
    query_rope, key_rope = call.query_rope, call.key_rope
    if query_rope is None or key_rope is None:
        require(False, "query_rope and key_rope must be given together or not at all")
        return
    query_size, key_size, value_size = _sizes(call)
    require(
        query_size in (128, LATENT_SIZE) and query_size == key_size == value_size,
        f"with query_rope, the head sizes of query, key and value are {query_size}, {key_size}, "
        f"{value_size}; they must all be 128 or all be 512",
    )
    _check_rope_shape("query_rope", query_rope, call.query, call.num_heads, call)
    _check_rope_shape("key_rope", key_rope, call.key, call.num_kv_heads, call)
    if query_size == LATENT_SIZE:
        _check_latent(call)
    else:
        require(
            call.input_layout in ROPE_LAYOUTS,
            f"input_layout {call.input_layout} with query_rope and head size 128; allowed: "
            f"{', '.join(ROPE_LAYOUTS)}",
        )


def _check_rope_shape(
    name: str, rope: torch.Tensor, of: torch.Tensor, heads: int, call: FusedInferCall
) -> None:
    width = ROPE_SIZE
    if of.dim() == 3 and (call.input_layout.startswith("BSH") or (of is call.key and call.paged)):
        width = ROPE_SIZE * heads
    if of.dim() == 5:
        require_shape(name, rope, (*of.shape[:2], ROPE_SIZE // 16, of.shape[3], 16))
    else:
        require_shape(name, rope, (*of.shape[:-1], width))


def _check_latent(call: FusedInferCall) -> None:
    require(
        call.input_layout in LATENT_LAYOUTS,
        f"input_layout {call.input_layout} with head size 512; allowed: "
        f"{', '.join(LATENT_LAYOUTS)}",
    )
    require(
        call.num_heads in (1, 2, 4, 8, 16, 32, 64, 128),
        f"{call.num_heads} query heads with head size 512; allowed: 1, 2, 4, 8, 16, 32, 64, 128. "
        f"Pad the heads",
    )
    require(
        call.num_kv_heads == 1,
        f"num_key_value_heads is {call.num_kv_heads}; head size 512 (MLA) allows 1",
    )
    require(
        call.sparse_mode in (0, 3, 4),
        f"sparse_mode is {call.sparse_mode}; head size 512 (MLA) allows 0, 3 and 4",
    )
    # Documented as not available; vllm-ascend's context parallelism merges those of these three.
    require(
        not call.wants_log_sum or call.input_layout in ("BSND", "BNSD", "TND"),
        "softmax_lse is not available with head size 512 (MLA)",
    )


def _check_sequence(call: FusedInferCall) -> None:
    require(
        call.sparse_mode in (0, 1, 2, 3, 4),
        f"sparse_mode is {call.sparse_mode}; it must be 0, 1, 2, 3 or 4",
    )
    require_range("inner_precise", call.inner_precise, 0, 3)
    if call.layout.packed:
        allowed = (0,) if call.query.dtype == torch.bfloat16 else (0, 1)
        require(
            call.inner_precise in allowed,
            f"inner_precise is {call.inner_precise}; {call.input_layout} with this dtype allows "
            f"{' and '.join(map(str, allowed))}",
        )
        return
    width = call.layout.sequence_length(call.query)
    if width == 1:
        require_range("inner_precise (one query)", call.inner_precise, 0, 1)
    if call.layout.output == "NBSD":
        # Documented: more than 1; vllm-ascend 0.23.0 decodes MLA with 1 on hardware.
        require_range(f"the query length in {call.input_layout}", width, 1, LATENT_QUERY_LIMIT)
    if call.input_layout == "BNSD_BSND":
        require(width > 1, "BNSD_BSND takes more than one query; use BNSD")


def _check_sink(call: FusedInferCall) -> None:
    if call.sink is None:
        return
    require_dtype("learnable_sink", call.sink, (torch.bfloat16,))
    require_shape("learnable_sink", call.sink, (call.num_heads,))
    require(
        call.input_layout in SINK_LAYOUTS,
        f"learnable_sink with input_layout {call.input_layout}; allowed: {', '.join(SINK_LAYOUTS)}",
    )
    value_size = _sizes(call)[2]
    require(
        value_size <= 128,
        f"learnable_sink with value head size {value_size}; at most 128 is allowed",
    )
