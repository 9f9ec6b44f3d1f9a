# SPDX-License-Identifier: Apache-2.0
"""The first half of a quantised mixture of experts: product, SwiGLU and quantisation in one."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch

from emulated_npu.operators.binding import Arguments
from emulated_npu.operators.quantization import int8_product, quantise_rows
from emulated_npu.operators.registry import operator
from emulated_npu.operators.requirements import (
    FLOATS,
    require,
    require_dtype,
    require_multiple,
    require_range,
    require_rank,
    require_same_dtype,
    require_shape,
)
from emulated_npu.unwritten import undefined

NO_LIMIT = 1e-8
"""A swiglu_limit up to this one limits nothing."""
NZ_COLUMNS = 32
"""Columns of a tile of int8 in the format FRACTAL_NZ, in which weights are."""
MOST_COLUMNS_OF_A_LIST, MOST_COLUMNS = 8192, 10240
INNER_LIMIT = 65536


@operator(
    "grouped_matmul_swiglu_quant_weight_nz_tensor_list",
    namespace="_C_ascend",
    source="vllm-ascend: GroupedMatmulSwigluQuantWeightNzTensorList, its definition, the checks of "
    "its op_api and its kernel; tests: test_gmm_swiglu_quant_weight_nz_tensor_list",
    limits="x (m, k) int8 with k below 65536; each weight (k, n) int8, n a multiple of 32 up to "
    "8192; each weight_scale (n,) of one float dtype; x_scale (m,) float32; group_list (at most "
    "one for each weight) int64, rising ends of groups within x. swiglu_limit not negative. "
    "bias and offset, which the device ignores, are refused. Weights are in ND, whatever format "
    "was asked for. Rows that no group covers, and output_offset, undefined on hardware, are zero. "
    "A row of zeros gives zeros and the scale 0.",
)
def grouped_matmul_swiglu_quant_weight_nz_tensor_list(
    x: torch.Tensor,
    weight: Sequence[torch.Tensor],
    weight_scale: Sequence[torch.Tensor],
    x_scale: torch.Tensor,
    group_list: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    offset: torch.Tensor | None = None,
    swiglu_limit: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Quantised SwiGLU of consecutive groups of rows of x, each multiplied by a weight of its own.

    h = (x @ weight) * x_scale * weight_scale in float32; silu(first half) * second half; each row
    is quantised to int8 by its largest magnitude. A swiglu_limit over 0 bounds the first half from
    above and the second on both sides.

    Returns output (m, n / 2) int8, output_scale (m,) float32 with which output is to be
    multiplied, and output_offset (m,) float32.
    """
    output, scale = _swiglu_quant(x, weight, weight_scale, x_scale, group_list, swiglu_limit)
    return output, scale, undefined(torch.empty(x.shape[0]))


def _swiglu_quant(
    x: torch.Tensor,
    weight: Sequence[torch.Tensor],
    weight_scale: Sequence[torch.Tensor],
    x_scale: torch.Tensor,
    group_list: torch.Tensor,
    limit: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    rows, columns = x.shape[0], weight[0].shape[1] // 2
    output = undefined(x.new_empty((rows, columns)))
    scale = undefined(torch.empty(rows))
    for group, (start, end) in enumerate(pairwise([0, *group_list.tolist()])):
        if end > start:
            part = slice(start, end)
            product = int8_product(x[part], weight[group]).float()
            hidden = product * x_scale[part].unsqueeze(-1) * weight_scale[group].float()
            output[part], scale[part] = quantise_rows(_swiglu(hidden, limit))
    return output, scale


def _swiglu(hidden: torch.Tensor, limit: float) -> torch.Tensor:
    gate, up = hidden.chunk(2, -1)
    if limit > NO_LIMIT:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return torch.nn.functional.silu(gate) * up


@grouped_matmul_swiglu_quant_weight_nz_tensor_list.check
def _check_list(given: Arguments) -> None:
    _check_rows(given)
    _check_weights(given.weight, given.weight_scale, given.x.shape[1], MOST_COLUMNS_OF_A_LIST)
    _check_group_list(given.group_list, len(given.weight), given.x.shape[0])


@operator(
    "grouped_matmul_swiglu_quant_weight_nz",
    namespace="_C_ascend",
    source="vllm-ascend: README of the operator grouped_matmul_swiglu_quant, and the checks of its "
    "op_api",
    limits="As grouped_matmul_swiglu_quant_weight_nz_tensor_list, with weight (groups, k, n), n up "
    "to 10240, and weight_scale (groups, n).",
    missing="int4 weights (held by int32), which alone have a bias.",
)
def grouped_matmul_swiglu_quant_weight_nz(
    x: torch.Tensor,
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    x_scale: torch.Tensor,
    group_list: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    offset: torch.Tensor | None = None,
    swiglu_limit: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The same of weights in one tensor. output_offset is one number, which nothing writes: 0."""
    if weight.dtype != torch.int8:
        raise NotImplementedError(
            f"emulated NPU has no torch.ops._C_ascend.grouped_matmul_swiglu_quant_weight_nz with "
            f"weight {weight.dtype}; it has int8"
        )
    weights, scales = weight.unbind(0), weight_scale.unbind(0)
    output, scale = _swiglu_quant(x, weights, scales, x_scale, group_list, swiglu_limit)
    return output, scale, torch.zeros(())


@grouped_matmul_swiglu_quant_weight_nz.check
def _check_tensor(given: Arguments) -> None:
    require_dtype("weight", given.weight, (torch.int8, torch.int32))
    if given.weight.dtype != torch.int8:
        return
    _check_rows(given)
    require_rank("weight", given.weight, 3)
    require_rank("weight_scale", given.weight_scale, 2)
    weights, scales = given.weight.unbind(0), given.weight_scale.unbind(0)
    _check_weights(weights, scales, given.x.shape[1], MOST_COLUMNS)
    _check_group_list(given.group_list, len(weights), given.x.shape[0])


def _check_rows(given: Arguments) -> None:
    require(given.bias is None, "bias is given; the operator ignores it. Leave it out")
    require(given.offset is None, "offset is given; the operator ignores it. Leave it out")
    require(given.swiglu_limit >= 0, f"swiglu_limit is {given.swiglu_limit}; it must be 0 or more")
    require_dtype("x", given.x, (torch.int8,))
    require_rank("x", given.x, 2)
    rows, inner = given.x.shape
    require_range("k", inner, 1, INNER_LIMIT - 1)
    require_dtype("x_scale", given.x_scale, (torch.float32,))
    require_shape("x_scale", given.x_scale, (rows,))


def _check_weights(
    weight: Sequence[torch.Tensor],
    weight_scale: Sequence[torch.Tensor],
    inner: int,
    most_columns: int,
) -> None:
    require(len(weight) > 0, "weight has no tensor; it must have one for each group")
    require(
        len(weight) == len(weight_scale),
        f"weight has {len(weight)} tensors, weight_scale {len(weight_scale)}; they must be as many",
    )
    require_rank("weight_scale[0]", weight_scale[0], 1)
    columns = weight_scale[0].shape[0]
    require_multiple("n", columns, NZ_COLUMNS)
    require_range("n", columns, 1, most_columns)
    for i, (matrix, scale) in enumerate(zip(weight, weight_scale, strict=True)):
        require_dtype(f"weight[{i}]", matrix, (torch.int8,))
        require_shape(f"weight[{i}]", matrix, (inner, columns))
        require_dtype(f"weight_scale[{i}]", scale, FLOATS)
        require_shape(f"weight_scale[{i}]", scale, (columns,))
    require_same_dtype(**{f"weight_scale[{i}]": scale for i, scale in enumerate(weight_scale)})


def _check_group_list(group_list: torch.Tensor, weights: int, rows: int) -> None:
    require_dtype("group_list", group_list, (torch.int64,))
    require_rank("group_list", group_list, 1)
    require_range("group_list's length", group_list.numel(), 1, weights)
    ends = group_list.tolist()
    require(
        ends == sorted(ends) and ends[0] >= 0 and ends[-1] <= rows,
        f"group_list is {ends}; its ends must rise, from 0 at least to x's {rows} rows at most",
    )
