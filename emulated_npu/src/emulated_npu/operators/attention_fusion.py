# SPDX-License-Identifier: Apache-2.0
"""npu_fusion_attention: the training operator, forward only, which vllm-ascend uses for encoders
and for very large heads."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from emulated_npu.operators.attention_call import host_integers
from emulated_npu.operators.attention_core import (
    UNLIMITED_TOKENS,
    AttentionResult,
    MaskRule,
    SparseMode,
    attend,
)
from emulated_npu.operators.attention_layouts import (
    Layout,
    join_batch,
    split_batch,
    split_packed,
)
from emulated_npu.operators.attention_lengths import check_cumulative
from emulated_npu.operators.attention_mask import TRIANGULAR_MODES, check_triangular_mask
from emulated_npu.operators.binding import Arguments
from emulated_npu.operators.registry import OperatorArgumentError, operator
from emulated_npu.operators.requirements import (
    FLOATS,
    require,
    require_absent,
    require_dtype,
    require_range,
    require_rank,
    require_same_dtype,
    require_shape,
)

LAYOUTS = ("BSH", "SBH", "BSND", "BNSD", "TND")
ROW_STATISTIC_WIDTH = 8  # row maximum and row sum come repeated eight times

FusionResult = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, int, int, int]


@operator(
    "npu_fusion_attention",
    source="op-plugin docs: torch_npu.npu_fusion_attention",
    limits="""float16, bfloat16 or float32; layouts BSH, SBH, BSND, BNSD, TND; head size 1 to 768,
    that of value at most that of query; sparse_mode 0 to 4, in 2, 3, 4 with the 2048 x 2048 mask;
    TND: cumulative lengths, trailing zeros for requests that take no part. Forward only.
    pre_tockens is inclusive: a band keeps pre_tockens + 1 keys.""",
    missing="pse, padding_mask, dropout, prefix, sparse_mode 5 to 8, gradients",
    host_arguments=("actual_seq_qlen", "actual_seq_kvlen"),
)
def npu_fusion_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    head_num: int,
    input_layout: str,
    pse: torch.Tensor | None = None,
    padding_mask: torch.Tensor | None = None,
    atten_mask: torch.Tensor | None = None,
    scale: float = 1.0,
    keep_prob: float = 1.0,
    pre_tockens: int = UNLIMITED_TOKENS,
    next_tockens: int = UNLIMITED_TOKENS,
    inner_precise: int = 0,
    prefix: Sequence[int] | None = None,
    actual_seq_qlen: Sequence[int] | None = None,
    actual_seq_kvlen: Sequence[int] | None = None,
    sparse_mode: int = 0,
    gen_mask_parallel: bool = True,
    sync: bool = False,
    softmax_layout: str = "",
    sink: torch.Tensor | None = None,
    dropout_mask: torch.Tensor | None = None,
    seed: int = 0,
    offset: int = 0,
) -> FusionResult:
    """Returns output, row maximum and row sum of the softmax, an empty tensor, and 0, 0, 0.

    The row statistics are float32, (B, N, S, 8), in TND (T, N, 8); by default their content in TND
    is ordered heads first, as documented.
    """
    require_absent("npu_fusion_attention", dropout_mask=dropout_mask)
    _refuse_missing(pse, padding_mask, keep_prob, prefix, sparse_mode)
    rule = _mask_rule(atten_mask, sparse_mode, pre_tockens, next_tockens)
    if input_layout == "TND":
        ends = _active_ends(actual_seq_qlen, actual_seq_kvlen)
        results = _attend_packed(query, key, value, scale, rule, sink, *ends)
        output, row_max, row_sum = _join_tnd(results, query, value, softmax_layout)
    else:
        results = _attend_batch(query, key, value, head_num, input_layout, scale, rule, sink)
        output = join_batch(torch.stack([result.output for result in results]), input_layout)
        row_max = torch.stack([result.row_max.T for result in results])
        row_sum = torch.stack([result.row_sum.T for result in results])
    wide = [
        statistic.unsqueeze(-1).repeat_interleave(ROW_STATISTIC_WIDTH, -1)
        for statistic in (row_max, row_sum)
    ]
    return output.to(query.dtype), wide[0], wide[1], torch.empty(0), 0, 0, 0


def _refuse_missing(
    pse: torch.Tensor | None,
    padding_mask: torch.Tensor | None,
    keep_prob: float,
    prefix: Sequence[int] | None,
    sparse_mode: int,
) -> None:
    asked = {
        "pse": pse is not None,
        "padding_mask": padding_mask is not None,
        "keep_prob below 1": keep_prob != 1.0,
        "prefix": prefix is not None,
        f"sparse_mode {sparse_mode}": sparse_mode in (5, 6, 7, 8),
    }
    for name, wanted in asked.items():
        if wanted:
            raise NotImplementedError(
                f"emulated NPU: npu_fusion_attention with {name} is not emulated; call it without"
            )


def _mask_rule(mask: torch.Tensor | None, mode: int, before: int, after: int) -> MaskRule:
    if mask is None:
        return MaskRule()  # documented: without a mask nothing is dropped, whatever the mode
    full = SparseMode(mode) in (SparseMode.DEFAULT_MASK, SparseMode.ALL_MASK)
    if not full:
        return MaskRule(SparseMode(mode), before, after)
    if mask.dim() == 4 and mask.shape[1] > 1:
        raise NotImplementedError(
            "emulated NPU: npu_fusion_attention with a mask for each head is not emulated; use "
            "(B, 1, S, S)"
        )
    return MaskRule(SparseMode(mode), before, after, mask.reshape(-1, *mask.shape[-2:]))


def _active_ends(
    query_lengths: Sequence[int] | torch.Tensor | None,
    kv_lengths: Sequence[int] | torch.Tensor | None,
) -> tuple[list[int], list[int]]:
    """Cumulative lengths without the trailing zeros of requests that take no part."""
    query_ends, kv_ends = host_integers(query_lengths) or [], host_integers(kv_lengths) or []
    if len(query_ends) != len(kv_ends):
        raise OperatorArgumentError(
            f"layout TND needs as many actual_seq_qlen as actual_seq_kvlen; there are "
            f"{len(query_ends)} and {len(kv_ends)}"
        )
    active = min(_count_active(query_ends), _count_active(kv_ends))
    return query_ends[:active], kv_ends[:active]


def _count_active(ends: list[int]) -> int:
    for index in range(1, len(ends)):
        if ends[index] < ends[index - 1] and not any(ends[index:]):
            return index
    return len(ends)


def _attend_packed(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float,
    rule: MaskRule,
    sink: torch.Tensor | None,
    query_ends: list[int],
    kv_ends: list[int],
) -> list[AttentionResult]:
    parts = zip(
        split_packed(query, "TND", query_ends),
        split_packed(key, "TND", kv_ends),
        split_packed(value, "TND", kv_ends),
        strict=True,
    )
    return [
        attend(queries, keys, values, scale, rule.visible(len(queries), len(keys), index), sink)
        for index, (queries, keys, values) in enumerate(parts)
    ]


def _join_tnd(
    results: list[AttentionResult], query: torch.Tensor, value: torch.Tensor, softmax_layout: str
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    num_tokens, num_heads = query.shape[:2]
    output = torch.zeros(num_tokens, num_heads, value.shape[2])
    row_max = torch.zeros(num_tokens, num_heads)
    row_sum = torch.zeros(num_tokens, num_heads)
    start = 0
    for result in results:
        rows = slice(start, start + result.output.shape[0])
        output[rows], row_max[rows], row_sum[rows] = result.output, result.row_max, result.row_sum
        start = rows.stop
    if softmax_layout != "TND":
        row_max = row_max.T.reshape(num_tokens, num_heads)
        row_sum = row_sum.T.reshape(num_tokens, num_heads)
    return output, row_max, row_sum


def _attend_batch(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    num_heads: int,
    input_layout: str,
    scale: float,
    rule: MaskRule,
    sink: torch.Tensor | None,
) -> list[AttentionResult]:
    layout = Layout.parse(input_layout)
    head_size = layout.head_size(query, num_heads)
    num_kv_heads = layout.num_heads(key, key.shape[-1] // head_size)
    queries = split_batch(query, input_layout, num_heads)
    keys = split_batch(key, input_layout, num_kv_heads)
    values = split_batch(value, input_layout, num_kv_heads)
    return [
        attend(rows, columns, contents, scale, rule.visible(len(rows), len(columns), index), sink)
        for index, (rows, columns, contents) in enumerate(zip(queries, keys, values, strict=True))
    ]


@npu_fusion_attention.check
def _check(given: Arguments) -> None:
    require(
        given.input_layout in LAYOUTS,
        f"input_layout is {given.input_layout!r}; it must be one of {', '.join(LAYOUTS)}",
    )
    require_dtype("query", given.query, FLOATS)
    require_same_dtype(query=given.query, key=given.key, value=given.value)
    require_range("head_num", given.head_num, 1, 256)
    layout = Layout.parse(given.input_layout)
    for name, tensor in (("query", given.query), ("key", given.key), ("value", given.value)):
        require_rank(name, tensor, layout.rank)
    head_size = layout.head_size(given.query, given.head_num)
    require_range("the head size", head_size, 1, 768)
    if "N" in given.input_layout:
        found = layout.num_heads(given.query, given.head_num)
        require(found == given.head_num, f"query has {found} heads; head_num is {given.head_num}")
        num_kv_heads = layout.num_heads(given.key, 0)
        require(
            given.head_num % num_kv_heads == 0,
            f"head_num {given.head_num} is not a multiple of the {num_kv_heads} heads of key",
        )
        require(
            given.key.shape[-1] == head_size >= given.value.shape[-1],
            f"head sizes of query, key, value are {head_size}, {given.key.shape[-1]}, "
            f"{given.value.shape[-1]}; the first two must be equal and the third not larger",
        )
    require(
        given.softmax_layout in ("", "TND"),
        f"softmax_layout is {given.softmax_layout!r}; use '' or 'TND'",
    )
    if given.sink is not None:
        require_dtype("sink", given.sink, (torch.float32,))
        require_shape("sink", given.sink, (given.head_num,))
    _check_mask(given.atten_mask, given.sparse_mode)
    if layout.packed:
        _check_packed(given.query, given.key, given.actual_seq_qlen, given.actual_seq_kvlen)


def _check_mask(mask: torch.Tensor | None, mode: int) -> None:
    if mask is None:
        require(mode == 0, f"sparse_mode {mode} needs an atten_mask")
        return
    if mode in TRIANGULAR_MODES and tuple(mask.shape[-2:]) == (2048, 2048):
        check_triangular_mask(mask, mode, (torch.bool, torch.uint8))
        return
    require(
        mode not in TRIANGULAR_MODES,
        f"atten_mask has shape {tuple(mask.shape)}; sparse_mode {mode} takes (2048, 2048)",
    )
    require_dtype("atten_mask", mask, (torch.bool, torch.uint8))
    require_rank("atten_mask", mask, (2, 4))


def _check_packed(
    query: torch.Tensor,
    key: torch.Tensor,
    query_lengths: Sequence[int] | None,
    kv_lengths: Sequence[int] | None,
) -> None:
    query_ends, kv_ends = _active_ends(query_lengths, kv_lengths)
    require_range("the number of actual_seq_qlen", len(query_ends), 1, 1024)
    check_cumulative("actual_seq_qlen", query_ends, None)
    check_cumulative("actual_seq_kvlen", kv_ends, None)
    require(
        query_ends[-1] <= query.shape[0] and kv_ends[-1] <= key.shape[0],
        f"actual_seq_qlen ends at {query_ends[-1]} of {query.shape[0]} tokens, actual_seq_kvlen at "
        f"{kv_ends[-1]} of {key.shape[0]}; neither may be past its tensor",
    )
