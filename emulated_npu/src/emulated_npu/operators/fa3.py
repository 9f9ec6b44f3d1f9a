# SPDX-License-Identifier: Apache-2.0
"""A stand-in for the library flash_attn_npu_v3, which vllm-ascend's FA3 backend calls.

Only flash_attn_with_kvcache, forward, over caches that hold the keys already. The refusals are the
library's own (flash-attention-npu, its binding of mha_fwd), and one for what it does not look at:
cu_seqlens_q that do not start at 0 and end at the number of query tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from emulated_npu import counters
from emulated_npu.operators.attention_core import MaskRule, SparseMode, attend
from emulated_npu.operators.attention_lengths import check_cumulative
from emulated_npu.operators.attention_paging import gather_tokens
from emulated_npu.operators.binding import Arguments
from emulated_npu.operators.registry import OperatorArgumentError, operator
from emulated_npu.operators.requirements import (
    HALF_FLOATS,
    require,
    require_contiguous,
    require_dtype,
    require_range,
    require_rank,
    require_same_dtype,
    require_shape,
)

NAMESPACE = "flash_attn_npu_v3"
# Arguments of the library, with the values that ask for nothing.
UNUSED: dict[str, tuple[Any, ...]] = {
    "k": (None,), "v": (None,), "qv": (None,), "rotary_cos": (None,), "rotary_sin": (None,),
    "cache_batch_idx": (None,), "cache_leftpad": (None,), "cu_seqlens_k_new": (None,),
    "rotary_seqlens": (None,), "q_descale": (None,), "k_descale": (None,), "v_descale": (None,),
    "attention_chunk": (0,), "softcap": (0.0,), "scheduler_metadata": (None,),
    "num_splits": (0, 1), "pack_gqa": (None, False), "sm_margin": (0,),
    "rotary_interleaved": (True, False),
}  # fmt: skip


@operator(
    "flash_attn_with_kvcache",
    namespace=NAMESPACE,
    source="flash-attention-npu README: FlashAttention v3, and the checks of its binding",
    limits="""float16 or bfloat16, one dtype; head size at most 256; q (B, S, N, D), or (T, N, D)
    with cu_seqlens_q int32 from 0 to T and max_seqlen_q; caches contiguous, (blocks, block size,
    kv heads, D) with page_table int32, else (B, S, kv heads, D); cache_seqlens int32. Lengths are
    read on the host, as the library does: two host reads.""",
    missing="""k and v to append, qv, rotary, left padding, window, softcap, attention_chunk,
    scheduler_metadata, num_splits over 1, pack_gqa, quantization""",
    host_arguments=("max_seqlen_q",),
)
def flash_attn_with_kvcache(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    k: torch.Tensor | None = None,
    v: torch.Tensor | None = None,
    qv: torch.Tensor | None = None,
    *,
    cache_seqlens: torch.Tensor | None = None,
    page_table: torch.Tensor | None = None,
    cu_seqlens_q: torch.Tensor | None = None,
    max_seqlen_q: int | torch.Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Sequence[int] = (-1, -1),
    return_softmax_lse: bool = False,
    **unused: Any,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Attention of queries over cached keys.

    softmax_scale: default 1 / sqrt(D). causal: the last query of a request is at its last key.
    Returns the output, like q, and with return_softmax_lse the log-sum-exp, float32, (T, N) or
    (B, S, N).
    """
    _refuse_unused({"k": k, "v": v, "qv": qv, **unused}, window_size)
    lengths = _read_lengths(cache_seqlens)
    starts = _query_starts(q, cu_seqlens_q)
    tokens = q.reshape(-1, *q.shape[-2:])
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    rule = MaskRule(SparseMode.RIGHT_DOWN_CAUSAL if causal else SparseMode.DEFAULT_MASK)
    output = tokens.new_zeros(*tokens.shape[:2], v_cache.shape[-1])
    # The library fills it with infinity and leaves the rows without keys so.
    log_sum = torch.full(tokens.shape[:2], float("inf"))
    for index, length in enumerate(lengths):
        rows = slice(starts[index], starts[index + 1])
        key = _cached(k_cache, page_table, index, length)
        value = _cached(v_cache, page_table, index, length)
        queries = tokens[rows]
        result = attend(queries, key, value, scale, rule.visible(len(queries), length))
        output[rows] = result.output
        log_sum[rows] = result.log_sum.masked_fill(result.log_sum.isinf(), float("inf"))
    output = output.reshape(*q.shape[:-1], v_cache.shape[-1])
    return (output, log_sum.reshape(q.shape[:-1])) if return_softmax_lse else output


def _refuse_unused(unused: dict[str, Any], window_size: Sequence[int]) -> None:
    for name, value in unused.items():
        if name not in UNUSED:
            raise TypeError(f"flash_attn_with_kvcache has no argument {name!r}")
        if not any(value is allowed or value == allowed for allowed in UNUSED[name]):
            raise NotImplementedError(
                f"emulated NPU: flash_attn_with_kvcache with {name} is not emulated; call it "
                f"without"
            )
    if tuple(window_size) != (-1, -1):
        raise NotImplementedError(
            f"emulated NPU: flash_attn_with_kvcache with window_size {tuple(window_size)}; the "
            f"library does not have it either, use (-1, -1)"
        )


def _read_lengths(cache_seqlens: torch.Tensor | None) -> list[int]:
    if cache_seqlens is None:
        raise OperatorArgumentError("cache_seqlens is None; give the kv length of each request")
    # The library copies both kinds of length to the host to plan its launch.
    counters.record_host_read(cache_seqlens.numel() * cache_seqlens.element_size())
    return [int(length) for length in cache_seqlens.tolist()]


def _query_starts(q: torch.Tensor, cu_seqlens_q: torch.Tensor | None) -> list[int]:
    if cu_seqlens_q is None:
        return list(range(0, q.shape[0] * q.shape[1] + 1, q.shape[1]))
    counters.record_host_read(cu_seqlens_q.numel() * cu_seqlens_q.element_size())
    return [int(start) for start in cu_seqlens_q.tolist()]


def _cached(
    cache: torch.Tensor, page_table: torch.Tensor | None, index: int, length: int
) -> torch.Tensor:
    if page_table is None:
        return cache[index, :length]
    if length > page_table.shape[1] * cache.shape[1]:
        raise OperatorArgumentError(
            f"kv length {length} is longer than the {page_table.shape[1]} pages of "
            f"{cache.shape[1]} tokens that page_table holds"
        )
    return gather_tokens(cache, page_table[index], length)


@flash_attn_with_kvcache.check
def _check(given: Arguments) -> None:
    require_dtype("q", given.q, HALF_FLOATS)
    require_same_dtype(q=given.q, k_cache=given.k_cache, v_cache=given.v_cache)
    require_rank("q", given.q, 3 if given.cu_seqlens_q is not None else 4)
    num_heads, head_size = given.q.shape[-2:]
    require_range("the head size", head_size, 1, 256)
    require_shape("k_cache", given.k_cache, (None, None, None, head_size))
    require_shape("v_cache", given.v_cache, given.k_cache.shape)
    num_kv_heads = given.k_cache.shape[2]
    require(
        num_heads % num_kv_heads == 0,
        f"q has {num_heads} heads, not a multiple of the {num_kv_heads} heads of k_cache",
    )
    require_contiguous("k_cache", given.k_cache)
    require_contiguous("v_cache", given.v_cache)
    require(
        given.q.stride(-1) == 1,
        f"q has strides {given.q.stride()}; its last dimension must be contiguous",
    )
    if given.cache_seqlens is not None:
        require_dtype("cache_seqlens", given.cache_seqlens, (torch.int32,))
    batch_size = given.q.shape[0]
    if given.cu_seqlens_q is not None:
        batch_size = given.cu_seqlens_q.numel() - 1
        _check_cumulative(given.q, given.cu_seqlens_q, given.max_seqlen_q)
    require(batch_size > 0, "the batch is empty; there must be at least one request")
    if given.cache_seqlens is not None:
        require_shape("cache_seqlens", given.cache_seqlens, (batch_size,))
    if given.page_table is not None:
        require_dtype("page_table", given.page_table, (torch.int32,))
        require_rank("page_table", given.page_table, 2)
        require(
            given.page_table.shape[0] >= batch_size,
            f"page_table has {given.page_table.shape[0]} rows for {batch_size} requests",
        )


def _check_cumulative(
    q: torch.Tensor, cu_seqlens_q: torch.Tensor, max_seqlen_q: int | torch.Tensor | None
) -> None:
    require_dtype("cu_seqlens_q", cu_seqlens_q, (torch.int32,))
    require_contiguous("cu_seqlens_q", cu_seqlens_q)
    require(max_seqlen_q is not None, "max_seqlen_q is None; cu_seqlens_q needs it")
    starts = cu_seqlens_q.tolist()
    require(
        starts[0] == 0,
        f"cu_seqlens_q {starts} must start at 0; subtract its first element when q is a slice",
    )
    check_cumulative("cu_seqlens_q", starts, q.shape[0])
