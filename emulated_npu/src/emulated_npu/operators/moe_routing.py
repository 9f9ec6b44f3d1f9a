# SPDX-License-Identifier: Apache-2.0
"""Mixture of experts: bring tokens into the order of their experts, and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from emulated_npu.operators.binding import Arguments
from emulated_npu.operators.registry import operator
from emulated_npu.operators.requirements import (
    FLOATS,
    INTEGERS,
    require,
    require_absent,
    require_dtype,
    require_range,
    require_rank,
    require_shape,
)
from emulated_npu.unwritten import undefined

CUMULATIVE, COUNT, KEY_VALUE = 0, 1, 2
GATHER_INDEX, SCATTER_INDEX = 0, 1
NO_QUANTISATION, STATIC_INT8, DYNAMIC_INT8 = -1, 0, 1


@dataclass(frozen=True)
class RoutingRequest:
    """The attributes of the init_routing operators; see their documentation."""

    active_num: int
    expert_num: int
    drop_pad_mode: int
    expert_tokens_num_type: int
    quant_mode: int
    active_expert_range: Sequence[int]
    row_idx_type: int

    @property
    def first_expert(self) -> int:
        return self.active_expert_range[0] if self.active_expert_range else 0

    @property
    def end_expert(self) -> int:
        return self.active_expert_range[1] if self.active_expert_range else self.expert_num


def init_routing(
    operator_name: str,
    x: torch.Tensor,
    expert_idx: torch.Tensor,
    scale: torch.Tensor | None,
    offset: torch.Tensor | None,
    request: RoutingRequest,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Copy each token of x (tokens, hidden) once for each of its experts, in expert order.

    expert_idx: int32 (tokens, k). Only experts first_expert to end_expert - 1 are served; the rows
    of the others, which hardware leaves undefined, are zero here.

    Returns: the copies (rows, hidden); the map between copies and choices, int32 (tokens * k,)
    (gather: choice -> row, -1 if not served; scatter: row -> choice, -1 past the last one, which
    hardware leaves undefined); how many rows each expert got, int64; the scale of each row,
    float32.
    """
    _require_supported(operator_name, request)
    choices = expert_idx.reshape(-1).long()
    choices_each = expert_idx.shape[1]
    served = (choices >= request.first_expert) & (choices < request.end_expert)
    sort_key = torch.where(served, choices, torch.iinfo(torch.int64).max)
    order = sort_key.sort(stable=True).indices[: int(served.sum())]
    num_rows = choices.numel()
    if request.active_num > 0:
        num_rows = min(num_rows, request.active_num)
    rows = x[(order // choices_each)[:num_rows]]
    row_experts = choices[order][:num_rows] - request.first_expert
    copies, row_scales = _quantise_rows(rows, row_experts, scale, offset, request.quant_mode)
    if scale is not None and request.quant_mode == NO_QUANTISATION:
        row_scales = scale[(order // choices_each)[:num_rows]]
    return (
        _pad_rows(copies, num_rows),
        _row_index(order, choices.numel(), request.row_idx_type),
        _tokens_of_experts(choices[served], request),
        _pad_rows(row_scales, num_rows),
    )


def _require_supported(operator_name: str, request: RoutingRequest) -> None:
    if request.drop_pad_mode != 0:
        raise NotImplementedError(
            f"emulated NPU has no {operator_name} with drop_pad_mode {request.drop_pad_mode}; "
            f"it has 0 (no token is dropped)"
        )
    if request.quant_mode not in (NO_QUANTISATION, STATIC_INT8, DYNAMIC_INT8):
        raise NotImplementedError(
            f"emulated NPU has no {operator_name} with quant_mode {request.quant_mode}; "
            f"it has -1, 0 and 1"
        )


def _quantise_rows(
    rows: torch.Tensor,
    row_experts: torch.Tensor,
    scale: torch.Tensor | None,
    offset: torch.Tensor | None,
    quant_mode: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    wide, unit_scales = rows.float(), torch.zeros(rows.shape[0])
    if quant_mode == NO_QUANTISATION:
        return rows, unit_scales
    if quant_mode == STATIC_INT8:
        assert scale is not None
        assert offset is not None
        # The kernel computes in float16 here (golden test of vllm-ascend).
        shifted = rows.half() * scale.half() + offset.half()
        return shifted.float().round().clamp(-128, 127).to(torch.int8), unit_scales
    if scale is not None:
        wide = wide * (scale if scale.shape[0] == 1 else scale[row_experts])
    row_scales = wide.abs().amax(-1) / 127
    return (wide / row_scales.unsqueeze(-1)).round().to(torch.int8), row_scales


def _pad_rows(rows: torch.Tensor, num_rows: int) -> torch.Tensor:
    padded = undefined(rows.new_empty((num_rows, *rows.shape[1:])))
    padded[: rows.shape[0]] = rows
    return padded


def _row_index(order: torch.Tensor, num_choices: int, row_idx_type: int) -> torch.Tensor:
    index = torch.full((num_choices,), -1, dtype=torch.int32)
    if row_idx_type == SCATTER_INDEX:
        index[: order.numel()] = order.to(torch.int32)
    else:
        index[order] = torch.arange(order.numel(), dtype=torch.int32)
    return index


def _tokens_of_experts(served: torch.Tensor, request: RoutingRequest) -> torch.Tensor:
    num_experts = request.end_expert - request.first_expert
    counts = torch.bincount(served - request.first_expert, minlength=num_experts)
    if request.expert_tokens_num_type == CUMULATIVE:
        return counts.cumsum(0)
    if request.expert_tokens_num_type == COUNT:
        return counts
    used = counts.nonzero().flatten()
    pairs = torch.zeros((request.expert_num, 2), dtype=torch.int64)
    pairs[: used.numel(), 0] = used + request.first_expert
    pairs[: used.numel(), 1] = counts[used]
    return pairs


def check_init_routing(
    x: torch.Tensor,
    expert_idx: torch.Tensor,
    scale: torch.Tensor | None,
    offset: torch.Tensor | None,
    request: RoutingRequest,
) -> None:
    """What op-plugin's page of npu_moe_init_routing_v2 asks."""
    require_rank("x", x, 2)
    require_dtype("x", x, (*FLOATS, torch.int8))
    require_dtype("expert_idx", expert_idx, (torch.int32,))
    require_shape("expert_idx", expert_idx, (x.shape[0], None))
    require_range("expert_num", request.expert_num, 0, 10240)
    require_range("expert_tokens_num_type", request.expert_tokens_num_type, CUMULATIVE, KEY_VALUE)
    require_range("row_idx_type", request.row_idx_type, GATHER_INDEX, SCATTER_INDEX)
    if request.active_expert_range:
        require(
            len(request.active_expert_range) == 2
            and 0 <= request.first_expert < request.end_expert <= request.expert_num,
            f"active_expert_range is {list(request.active_expert_range)}; it must be "
            f"[start, end] with 0 <= start < end <= expert_num ({request.expert_num})",
        )
    if expert_idx.numel():
        require_range("the least of expert_idx", int(expert_idx.min()), 0, request.expert_num - 1)
        require_range("the largest of expert_idx", int(expert_idx.max()), 0, request.expert_num - 1)
    _check_routing_scale(x, scale, offset, request)


def _check_routing_scale(
    x: torch.Tensor,
    scale: torch.Tensor | None,
    offset: torch.Tensor | None,
    request: RoutingRequest,
) -> None:
    for name, tensor in (("scale", scale), ("offset", offset)):
        if tensor is not None:
            require_dtype(name, tensor, (torch.float32,))
    if request.quant_mode == STATIC_INT8:
        require(
            scale is not None and offset is not None, "static quantisation needs scale and offset"
        )
    else:
        require(offset is None, "offset is for static quantisation (quant_mode 0) only")
    if scale is None:
        return
    if request.quant_mode == NO_QUANTISATION:
        require_shape("scale", scale, (x.shape[0],))
    elif request.quant_mode == STATIC_INT8:
        require_shape("scale", scale, (1,))
    else:
        experts = request.end_expert - request.first_expert
        require_shape("scale", scale, (1 if scale.shape[0] == 1 else experts, x.shape[1]))


@operator(
    "npu_moe_init_routing_v2",
    source="op-plugin docs: torch_npu.npu_moe_init_routing_v2",
    limits="x (tokens, hidden), expert_idx int32. Rows that hardware leaves undefined are zero.",
    missing="drop_pad_mode 1; quant_mode other than -1, 0, 1.",
)
def npu_moe_init_routing_v2(
    x: torch.Tensor,
    expert_idx: torch.Tensor,
    *,
    scale: torch.Tensor | None = None,
    offset: torch.Tensor | None = None,
    active_num: int = -1,
    expert_capacity: int = -1,
    expert_num: int = -1,
    drop_pad_mode: int = 0,
    expert_tokens_num_type: int = 0,
    expert_tokens_num_flag: bool = False,
    quant_mode: int = -1,
    active_expert_range: Sequence[int] = (),
    row_idx_type: int = 0,
    x_dtype: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """See init_routing. The counts are returned whatever expert_tokens_num_flag."""
    require_absent("npu_moe_init_routing_v2", x_dtype=x_dtype)
    request = RoutingRequest(
        active_num,
        expert_num,
        drop_pad_mode,
        expert_tokens_num_type,
        quant_mode,
        active_expert_range,
        row_idx_type,
    )
    return init_routing("torch_npu.npu_moe_init_routing_v2", x, expert_idx, scale, offset, request)


@npu_moe_init_routing_v2.check
def check_init_routing_arguments(given: Arguments) -> None:
    """The limits of the arguments by which it and vllm-ascend's own operator are called."""
    request = RoutingRequest(
        given.active_num,
        given.expert_num,
        given.drop_pad_mode,
        given.expert_tokens_num_type,
        given.quant_mode,
        given.active_expert_range,
        given.row_idx_type,
    )
    check_init_routing(given.x, given.expert_idx, given.scale, given.offset, request)


@operator(
    "npu_moe_token_permute",
    source="op-plugin tests: test_npu_moe_token_permute_and_unpermute",
    limits="tokens (tokens, hidden); indices int32 or int64, (tokens,) or (tokens, k).",
    missing="padded_mode.",
)
def npu_moe_token_permute(
    tokens: torch.Tensor,
    indices: torch.Tensor,
    num_out_tokens: int | None = None,
    padded_mode: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Copy each token once for each of its indices, sorted by index (stable).

    num_out_tokens: keep only so many copies; None or 0 keeps all.

    Returns the copies, and for each choice (in the order of indices) the row of its copy, int32.
    """
    if padded_mode:
        raise NotImplementedError(
            "emulated NPU has no torch_npu.npu_moe_token_permute with padded_mode"
        )
    choices_each = indices.shape[1] if indices.dim() > 1 else 1
    order = indices.reshape(-1).sort(stable=True).indices
    rows = torch.empty_like(order)
    rows[order] = torch.arange(order.numel())
    kept = order[: num_out_tokens or order.numel()]
    return tokens[kept // choices_each], rows.to(torch.int32)


@npu_moe_token_permute.check
def _check_token_permute(tokens: torch.Tensor, indices: torch.Tensor) -> None:
    require_rank("tokens", tokens, 2)
    require_dtype("indices", indices, INTEGERS)
    require_rank("indices", indices, (1, 2))
    require(
        indices.shape[0] == tokens.shape[0],
        f"indices has {indices.shape[0]} rows; tokens has {tokens.shape[0]}: they must be equal",
    )


@operator(
    "npu_moe_token_unpermute",
    source="op-plugin tests: test_npu_moe_token_permute_and_unpermute",
    limits="permuted_tokens (rows, hidden); sorted_indices int32; probs (tokens, k).",
    missing="padded_mode.",
)
def npu_moe_token_unpermute(
    permuted_tokens: torch.Tensor,
    sorted_indices: torch.Tensor,
    probs: torch.Tensor | None = None,
    padded_mode: bool = False,
    restore_shape: Sequence[int] | None = None,
) -> torch.Tensor:
    """For each token the sum of its rows, weighted by probs. Summed in float32, rounded once.

    sorted_indices: the row of each choice, as npu_moe_token_permute returns it.
    """
    if padded_mode:
        raise NotImplementedError(
            "emulated NPU has no torch_npu.npu_moe_token_unpermute with padded_mode"
        )
    choices_each = probs.shape[1] if probs is not None else 1
    rows = permuted_tokens[sorted_indices.long()].float().unflatten(0, (-1, choices_each))
    if probs is not None:
        rows = rows * probs.float().unsqueeze(-1)
    return rows.sum(1).to(permuted_tokens.dtype)


@npu_moe_token_unpermute.check
def _check_token_unpermute(
    permuted_tokens: torch.Tensor, sorted_indices: torch.Tensor, probs: torch.Tensor | None
) -> None:
    require_rank("permuted_tokens", permuted_tokens, 2)
    require_dtype("permuted_tokens", permuted_tokens, FLOATS)
    require_rank("sorted_indices", sorted_indices, 1)
    require_dtype("sorted_indices", sorted_indices, (torch.int32,))
    if probs is not None:
        require_dtype("probs", probs, FLOATS)
        require_rank("probs", probs, 2)
        require(
            probs.numel() == sorted_indices.numel(),
            f"probs has {probs.numel()} elements, sorted_indices {sorted_indices.numel()}; they "
            f"must have as many",
        )
    if sorted_indices.numel():
        rows = permuted_tokens.shape[0]
        require_range("the least of sorted_indices", int(sorted_indices.min()), 0, rows - 1)
        require_range("the largest of sorted_indices", int(sorted_indices.max()), 0, rows - 1)
