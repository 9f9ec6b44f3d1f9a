# SPDX-License-Identifier: Apache-2.0
"""One call of npu_fused_infer_attention_score, v1 or v2, in one form, and its computation.

The two versions differ in the names of their arguments only, as far as they are emulated: tables
here map the names of each to the fields of :class:`FusedInferCall`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch

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
    join_packed,
    split_batch,
    split_packed,
)
from emulated_npu.operators.attention_paging import cache_head_size, gather_request
from emulated_npu.operators.registry import OperatorArgumentError

V1_NAMES = {
    "query": "query", "key": "key", "value": "value",
    "query_rope": "query_rope", "key_rope": "key_rope",
    "atten_mask": "mask", "block_table": "block_table",
    "actual_seq_lengths": "query_lengths", "actual_seq_lengths_kv": "kv_lengths",
    "num_heads": "num_heads", "num_key_value_heads": "num_kv_heads", "scale": "scale",
    "pre_tokens": "pre_tokens", "next_tokens": "next_tokens", "input_layout": "input_layout",
    "sparse_mode": "sparse_mode", "block_size": "block_size", "inner_precise": "inner_precise",
    "softmax_lse_flag": "wants_log_sum",
    "key_antiquant_scale": "key_scale", "value_antiquant_scale": "value_scale",
}  # fmt: skip
_V1_ONLY = (
    "actual_seq_lengths", "actual_seq_lengths_kv", "num_heads", "scale", "softmax_lse_flag",
    "key_antiquant_scale", "value_antiquant_scale",
)  # fmt: skip
V2_NAMES = {
    **{name: field for name, field in V1_NAMES.items() if name not in _V1_ONLY},
    "actual_seq_qlen": "query_lengths", "actual_seq_kvlen": "kv_lengths",
    "num_query_heads": "num_heads", "softmax_scale": "scale",
    "return_softmax_lse": "wants_log_sum", "learnable_sink": "sink",
    "dequant_scale_query": "query_scale", "dequant_scale_key": "key_scale",
    "dequant_scale_value": "value_scale", "query_quant_mode": "query_quant_mode",
}  # fmt: skip

# Arguments that are known and not emulated, with the values that ask for nothing.
V1_MISSING = {
    **dict.fromkeys(
        (
            "pse_shift", "dequant_scale1", "quant_scale1", "dequant_scale2", "quant_scale2",
            "quant_offset2", "antiquant_scale", "antiquant_offset", "query_padding_size",
            "kv_padding_size", "key_antiquant_offset", "value_antiquant_offset",
            "key_shared_prefix", "value_shared_prefix", "actual_shared_prefix_len",
            "key_rope_antiquant_scale",
        )
    ),
    "antiquant_mode": 0, "key_antiquant_mode": 0, "value_antiquant_mode": 0,
}  # fmt: skip
V2_MISSING = {
    **dict.fromkeys(
        (
            "pse_shift", "dequant_offset_key", "dequant_offset_value", "dequant_scale_key_rope",
            "quant_scale_out", "quant_offset_out", "quant_scale_p", "query_dtype", "key_dtype",
            "value_dtype", "query_rope_dtype", "key_rope_dtype", "key_shared_prefix_dtype",
            "value_shared_prefix_dtype", "dequant_scale_query_dtype", "dequant_scale_key_dtype",
            "dequant_scale_value_dtype", "dequant_scale_key_rope_dtype", "out_dtype",
        )
    ),
    "key_quant_mode": 0, "value_quant_mode": 0,
}  # fmt: skip


@dataclass(frozen=True)
class FusedInferCall:
    """The arguments of one call; op-plugin's documentation of the two versions describes them.

    query_lengths, kv_lengths: cumulative in packed layouts, but kv_lengths of a paged cache are
    each request's own. sink: (num_heads,) or None. key_scale, value_scale: what the channels of
    int8 keys and values are multiplied with, kv heads * D elements, or None. query_scale: what
    the rows of an int8 query are multiplied with, its shape without D, or None; keys and values
    have one scale each then.
    """

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    query_rope: torch.Tensor | None = None
    key_rope: torch.Tensor | None = None
    mask: torch.Tensor | None = None
    block_table: torch.Tensor | None = None
    query_lengths: list[int] | None = None
    kv_lengths: list[int] | None = None
    sink: torch.Tensor | None = None
    num_heads: int = 1
    num_kv_heads: int = 0
    scale: float = 1.0
    pre_tokens: int = UNLIMITED_TOKENS
    next_tokens: int = UNLIMITED_TOKENS
    input_layout: str = "BSH"
    sparse_mode: int = 0
    block_size: int = 0
    inner_precise: int = 0
    wants_log_sum: bool = False
    key_scale: torch.Tensor | None = None
    value_scale: torch.Tensor | None = None
    query_scale: torch.Tensor | None = None
    query_quant_mode: int = 0

    @property
    def quantised(self) -> bool:
        """Whether keys and values are integers with scales."""
        return self.key_scale is not None or self.value_scale is not None

    @property
    def fully_quantised(self) -> bool:
        """Whether the query is integers with scales, too."""
        return self.query_scale is not None

    @property
    def layout(self) -> Layout:
        return Layout.parse(self.input_layout)

    @property
    def paged(self) -> bool:
        return self.block_table is not None

    @property
    def batch_size(self) -> int:
        if self.layout.packed:
            return len(self.query_lengths or ())
        return self.layout.batch_size(self.query)

    @property
    def head_size(self) -> int:
        return self.layout.head_size(self.query, self.num_heads)

    def query_ends(self) -> list[int]:
        """Cumulative query lengths of a packed layout."""
        if self.query_lengths is None:
            raise OperatorArgumentError(
                f"the query lengths are None; layout {self.input_layout} needs cumulative lengths"
            )
        return self.query_lengths


def read_call(
    names: Mapping[str, str], missing: Mapping[str, Any], arguments: Mapping[str, Any]
) -> FusedInferCall:
    """Arguments of one version -> FusedInferCall.

    Errors: TypeError for a name that the version does not have, NotImplementedError for a feature
    that is not emulated.
    """
    given: dict[str, Any] = {}
    for name, value in arguments.items():
        if name in names:
            given[names[name]] = value
        elif name not in missing:
            raise TypeError(f"npu_fused_infer_attention_score has no argument {name!r}")
        elif value is not None and value != missing[name]:
            raise NotImplementedError(
                f"emulated NPU: npu_fused_infer_attention_score with {name} is not emulated; "
                f"call it without"
            )
    for name in ("query_lengths", "kv_lengths"):
        given[name] = host_integers(given.get(name))
    call = FusedInferCall(**given)
    if call.sparse_mode == 9:
        raise NotImplementedError(
            "emulated NPU: npu_fused_infer_attention_score with sparse_mode 9 (tree mask) is not "
            "emulated; use 0 to 4"
        )
    return replace(call, num_kv_heads=call.num_kv_heads or call.num_heads)


def options_of(names: Mapping[str, str], missing: Mapping[str, Any]) -> dict[str, Any]:
    """What a version takes by keyword, and the defaults."""
    defaults = {one.name: one.default for one in fields(FusedInferCall)}
    known = {name: defaults[field] for name, field in names.items()}
    tensors = ("query", "key", "value")
    return {**{name: value for name, value in known.items() if name not in tensors}, **missing}


def host_integers(values: torch.Tensor | Sequence[Any] | None) -> list[int] | None:
    """A list of int from what PyTorch takes for an ``int[]``: a list, or a tensor on the host."""
    if values is None:
        return None
    if isinstance(values, torch.Tensor):
        return [int(value) for value in values.tolist()]
    return [int(value) for value in values]


def compute(call: FusedInferCall) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and log-sum-exp in the layouts that the documentation gives.

    The log-sum-exp is float32, (T, N, 1) for packed layouts, else (B, N, S, 1); a single zero of
    shape (1,) if it was not asked for. Rows of the output that belong to no request are zero.
    """
    if call.fully_quantised:
        return compute_with_scaled_rows(call)
    output, log_sum = _compute_packed(call) if call.layout.packed else _compute_batch(call)
    if not call.wants_log_sum:
        log_sum = torch.zeros(1)
    return output, log_sum


def compute_with_scaled_rows(call: FusedInferCall) -> tuple[torch.Tensor, torch.Tensor]:
    """As ``compute`` for an int8 query; the output has the dtype of the rope parts.

    A score is (query . key + query_rope . key_rope) * the row's scale * the keys' scale: the rope
    part of a query comes divided by both (the operator that makes it, npu_mla_prolog_v2, does so).
    The device may round its softmax to int8 for the product with values; that is not documented,
    and here only the output is rounded.
    """
    rows, keys, rope = call.query_scale, call.key_scale, call.query_rope
    if rows is None or keys is None or rope is None:
        raise OperatorArgumentError(
            "an int8 query needs dequant_scale_query, dequant_scale_key and query_rope"
        )
    rows = rows.float().unsqueeze(-1)
    plain = replace(
        call,
        query=call.query.float() * rows,
        query_rope=rope.float() * rows * keys.float(),
        query_scale=None,
    )
    output, log_sum = compute(plain)
    return output.to(rope.dtype), log_sum


def _compute_packed(call: FusedInferCall) -> tuple[torch.Tensor, torch.Tensor]:
    layout = call.layout
    ends = call.query_ends()
    queries = split_packed(call.query, layout.input, ends)
    if call.query_rope is not None:
        ropes = split_packed(call.query_rope, layout.input, ends)
        queries = [torch.cat(pair, -1) for pair in zip(queries, ropes, strict=True)]
    num_tokens = layout.num_tokens(call.query)
    value_size = _value_size(call)
    output = call.query.new_zeros(num_tokens, call.num_heads, value_size)
    log_sum = torch.zeros(num_tokens, call.num_heads, 1)
    rule = _mask_rule(call)
    for index, (query, end) in enumerate(zip(queries, ends, strict=True)):
        if not query.shape[0]:
            continue
        rows = slice(end - query.shape[0], end)
        result = _attend_request(call, index, query, rule)
        output[rows] = result.output
        log_sum[rows, :, 0] = result.log_sum
    return join_packed(output, layout.output), log_sum


def _compute_batch(call: FusedInferCall) -> tuple[torch.Tensor, torch.Tensor]:
    layout = call.layout
    queries = split_batch(call.query, layout.input, call.num_heads)
    if call.query_rope is not None:
        rope = split_batch(call.query_rope, layout.input, call.num_heads)
        queries = torch.cat((queries, rope), -1)
    batch_size, width = queries.shape[:2]
    lengths = _batch_lengths(call.query_lengths, batch_size, width)
    if width == 1:
        lengths = [1] * batch_size  # documented: query lengths have no effect at Q_S = 1
    output = call.query.new_zeros(batch_size, width, call.num_heads, _value_size(call))
    log_sum = torch.zeros(batch_size, call.num_heads, width, 1)
    rule = _mask_rule(call)
    for index, length in enumerate(lengths):
        result = _attend_request(call, index, queries[index, :length], rule)
        output[index, :length] = result.output
        log_sum[index, :, :length, 0] = result.log_sum.transpose(0, 1)
    return join_batch(output, layout.output), log_sum


def _attend_request(
    call: FusedInferCall, index: int, query: torch.Tensor, rule: MaskRule
) -> AttentionResult:
    key = dequantised(_request_kv(call, call.key, index), call.key_scale)
    shared = call.value is call.key and call.value_scale is call.key_scale
    value = key if shared else dequantised(_request_kv(call, call.value, index), call.value_scale)
    if call.key_rope is not None:
        key = torch.cat((key, _request_kv(call, call.key_rope, index)), -1)
    visible = rule.visible(query.shape[0], key.shape[0], index)
    return attend(query, key, value, call.scale, visible, call.sink)


def dequantised(rows: torch.Tensor, scale: torch.Tensor | None) -> torch.Tensor:
    """Rows (length, heads, D) of a cache times the scale of their channels, or of all, float32.

    The documentation does not say where the device rounds; here only the output is rounded.
    """
    if scale is None:
        return rows
    if scale.numel() == 1:
        return rows.float() * scale.float()
    return rows.float() * scale.float().reshape(rows.shape[1:])


def _request_kv(call: FusedInferCall, tensor: torch.Tensor, index: int) -> torch.Tensor:
    """Key, value or key rope of request `index`: (kv length, kv heads, D)."""
    if call.block_table is not None:
        if call.kv_lengths is None:
            raise OperatorArgumentError("the kv lengths are None; a paged cache needs them")
        return gather_request(
            tensor, call.block_table[index], call.kv_lengths[index], call.num_kv_heads
        )
    layout = call.layout
    if layout.packed:
        ends = call.kv_lengths
        if ends is None:
            raise OperatorArgumentError("the kv lengths are None; a packed layout needs them")
        tokens = tensor if layout.input == "TND" else tensor.transpose(0, 1)
        return tokens[ends[index - 1] if index else 0 : ends[index]]
    rows = split_batch(tensor, layout.input, call.num_kv_heads)[index]
    lengths = _batch_lengths(call.kv_lengths, call.batch_size, rows.shape[0])
    return rows[: lengths[index]]


def _batch_lengths(lengths: list[int] | None, batch_size: int, full: int) -> list[int]:
    """Lengths of a layout with a batch axis: none is the full length, one serves every request."""
    if lengths is None:
        return [full] * batch_size
    if len(lengths) == 1:
        return lengths * batch_size
    return lengths[:batch_size]


def _value_size(call: FusedInferCall) -> int:
    if call.paged:
        return cache_head_size(call.value, call.num_kv_heads)
    return call.layout.head_size(call.value, call.num_kv_heads)


def _mask_rule(call: FusedInferCall) -> MaskRule:
    mode = SparseMode(call.sparse_mode)
    mask = call.mask if mode in (SparseMode.DEFAULT_MASK, SparseMode.ALL_MASK) else None
    one_token = not call.layout.packed and call.layout.sequence_length(call.query) == 1
    if one_token and call.query_rope is None and mode > SparseMode.ALL_MASK:
        mode = SparseMode.DEFAULT_MASK  # documented: no effect at Q_S = 1 without rope
    if mask is not None:
        # (Q_S, KV_S) serves all requests; (B, KV_S) is one row for each.
        mask = mask.unsqueeze(1 if one_token else 0) if mask.dim() == 2 else mask
        mask = mask.reshape(-1, *mask.shape[-2:])
    limits = (UNLIMITED_TOKENS,) * 2 if one_token else (call.pre_tokens, call.next_tokens)
    return MaskRule(mode, *limits, mask)
