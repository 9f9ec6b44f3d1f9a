# SPDX-License-Identifier: Apache-2.0
"""Quantisation of activations to int8, and matrix products of int8."""

from __future__ import annotations

import torch

from emulated_npu.operators import int4
from emulated_npu.operators.binding import Arguments
from emulated_npu.operators.registry import operator
from emulated_npu.operators.requirements import (
    FLOATS,
    HALF_FLOATS,
    require,
    require_absent,
    require_contiguous,
    require_dtype,
    require_multiple,
    require_range,
    require_same_dtype,
    require_shape,
)

INT8_MAX = 127
BLOCK_INT8 = 1  # dst_type of npu_dynamic_block_quant
BLOCK_COLUMNS = 128


@operator(
    "npu_dynamic_quant",
    source="op-plugin docs: torch_npu.npu_dynamic_quant",
    limits="input float16 or bfloat16 of 2 dimensions or more; smooth_scales of its last size, or "
    "one row for each group; its last size a multiple of 8 for dst_type quint4x2. A row of zeros "
    "gives zeros and the scale 0.",
    missing="dst_type other than int8 and quint4x2, quant_mode other than pertoken, dst_type_max.",
)
def npu_dynamic_quant(
    input: torch.Tensor,
    *,
    smooth_scales: torch.Tensor | None = None,
    group_index: torch.Tensor | None = None,
    dst_type: torch.dtype | None = None,
    quant_mode: str = "pertoken",
    dst_type_max: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise each row to int8 or int4 by its largest magnitude.

    group_index: ends of groups of rows; row i of smooth_scales is for group i.

    Returns int8 of input's shape, or int32 that holds int4 (its last size an eighth of input's),
    and float32 scales of input's shape without its last dimension.
    """
    if dst_type not in (None, torch.int8, torch.quint4x2):
        raise NotImplementedError(
            f"emulated NPU has no torch_npu.npu_dynamic_quant with dst_type {dst_type}; it has "
            f"int8 and quint4x2"
        )
    if quant_mode != "pertoken":
        raise NotImplementedError(
            f"emulated NPU has no torch_npu.npu_dynamic_quant with quant_mode {quant_mode}; it has "
            f"pertoken"
        )
    require_absent("npu_dynamic_quant", dst_type_max=dst_type_max)
    wide = input.float()
    if smooth_scales is not None:
        factors = smooth_scales.float()
        if group_index is not None:
            rows = torch.arange(input.numel() // input.shape[-1], dtype=group_index.dtype)
            groups = torch.searchsorted(group_index, rows, right=True)
            factors = factors[groups].view_as(wide)
        wide = wide * factors
    if dst_type != torch.quint4x2:
        return quantise_rows(wide)
    quantised, scales = quantise_rows(wide, int4.HIGHEST)
    return int4.pack(quantised), scales


def quantise_rows(wide: torch.Tensor, highest: int = INT8_MAX) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise each row of float32 so that its largest magnitude becomes ``highest``.

    A row of zeros stays zeros. Returns int8 of its shape and float32 scales of its shape without
    the last dimension.
    """
    scales = wide.abs().amax(-1) / highest
    # A row of zeros has scale 0; dividing by 1 instead keeps it zero.
    divisor = torch.where(scales == 0, torch.ones_like(scales), scales).unsqueeze(-1)
    return (wide / divisor).round().clamp(-128, 127).to(torch.int8), scales


@npu_dynamic_quant.check
def _check_dynamic_quant(
    input: torch.Tensor,
    smooth_scales: torch.Tensor | None,
    group_index: torch.Tensor | None,
    dst_type: torch.dtype | None,
) -> None:
    require_dtype("input", input, HALF_FLOATS)
    require(input.dim() > 1, f"input has {input.dim()} dimension; it must have 2 or more")
    if dst_type == torch.quint4x2:
        require_multiple("input's last size", input.shape[-1], int4.IN_INT32)
    if smooth_scales is None:
        require(group_index is None, "group_index is given without smooth_scales; give both")
        return
    require_dtype("smooth_scales", smooth_scales, HALF_FLOATS)
    if group_index is None:
        require_shape("smooth_scales", smooth_scales, (input.shape[-1],))
        return
    require_dtype("group_index", group_index, (torch.int32,))
    require_shape("smooth_scales", smooth_scales, (group_index.numel(), input.shape[-1]))
    ends = group_index.tolist()
    rows = input.numel() // input.shape[-1]
    require(
        ends == sorted(ends) and ends[-1] == rows,
        f"group_index is {ends}; it must rise and end with the number of rows, {rows}",
    )


@operator(
    "npu_dynamic_block_quant",
    source="op-plugin docs: torch_npu.npu_dynamic_block_quant (Atlas A2, A3)",
    limits="x float16 or bfloat16 of 2 or 3 dimensions; min_scale not negative; round_mode rint; "
    "dst_type 1 (int8); row_block_size 1; col_block_size 128. A block of zeros gives zeros.",
    missing="dst_type_max.",
)
def npu_dynamic_block_quant(
    x: torch.Tensor,
    *,
    min_scale: float = 0.0,
    round_mode: str = "rint",
    dst_type: int | torch.dtype = BLOCK_INT8,
    row_block_size: int = 1,
    col_block_size: int = BLOCK_COLUMNS,
    dst_type_max: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise each block of 128 columns of a row to int8 by its largest magnitude.

    Returns int8 of x's shape, and float32 scales of x's shape with its blocks as last dimension:
    what a block is to be multiplied with (the documentation's example; its formula has the
    reciprocal).
    """
    require_absent("npu_dynamic_block_quant", dst_type_max=dst_type_max)
    columns = x.shape[-1]
    # The last block may be narrower; zeros do not change a largest magnitude.
    wide = torch.nn.functional.pad(x.float(), (0, -columns % col_block_size))
    blocks = wide.unflatten(-1, (-1, col_block_size))
    scales = (blocks.abs().amax(-1) / INT8_MAX).clamp(min=min_scale)
    divisor = torch.where(scales == 0, torch.ones_like(scales), scales).unsqueeze(-1)
    quantised = (blocks / divisor).round().clamp(-128, 127).to(torch.int8)
    return quantised.flatten(-2)[..., :columns].contiguous(), scales


@npu_dynamic_block_quant.check
def _check_dynamic_block_quant(
    x: torch.Tensor,
    min_scale: float,
    round_mode: str,
    dst_type: int | torch.dtype,
    row_block_size: int,
    col_block_size: int,
) -> None:
    require_dtype("x", x, HALF_FLOATS)
    require_range("x's number of dimensions", x.dim(), 2, 3)
    require(min_scale >= 0, f"min_scale is {min_scale}; it must not be negative")
    for name, value, only in (
        ("round_mode", round_mode, ("rint",)),
        ("dst_type", dst_type, (BLOCK_INT8, torch.int8)),
        ("row_block_size", row_block_size, (1,)),
        ("col_block_size", col_block_size, (BLOCK_COLUMNS,)),
    ):
        require(value in only, f"{name} is {value}; it must be {only[0]}")


@operator(
    "npu_quantize",
    source="op-plugin docs: torch_npu.npu_quantize",
    limits="scales (and zero_points) of one element or of input's size along axis. With div_mode "
    "False, axis -2 is the last but one dimension and every other axis the last; for quint4x2 "
    "input's last size is a multiple of 8.",
    missing="dtype other than qint8, quint8 and int32 (both only with div_mode), quint4x2 (only "
    "without).",
)
def npu_quantize(
    input: torch.Tensor,
    scales: torch.Tensor,
    zero_points: torch.Tensor | None,
    dtype: torch.dtype,
    axis: int = 1,
    div_mode: bool = True,
) -> torch.Tensor:
    """round(input / scales + zero_points), or with * instead of / if not div_mode.

    Returns int8 for qint8, uint8 for quint8, int32 for int32; for quint4x2 int32 that holds int4,
    its last size an eighth of input's.
    """
    targets = {torch.qint8: torch.int8, torch.int8: torch.int8}
    if div_mode:
        targets |= {torch.quint8: torch.uint8, torch.int32: torch.int32}
    else:
        targets |= {torch.quint4x2: torch.int8}
    if dtype not in targets:
        raise NotImplementedError(
            f"emulated NPU has no torch_npu.npu_quantize with dtype {dtype} and div_mode {div_mode}"
        )
    axis = _quantised_axis(input, axis, div_mode)
    factors = _along_axis(scales, input, axis)
    wide = input.float() / factors if div_mode else input.float() * factors
    if zero_points is not None:
        wide = wide + _along_axis(zero_points, input, axis)
    if dtype == torch.quint4x2:
        return int4.pack(wide.round().clamp(int4.LOWEST, int4.HIGHEST))
    limits = torch.iinfo(targets[dtype])
    # float32 cannot hold int32's limits; float64 can.
    return wide.double().round().clamp(limits.min, limits.max).to(targets[dtype])


def _quantised_axis(input: torch.Tensor, axis: int, div_mode: bool) -> int:
    if div_mode:
        return axis % input.dim()
    return input.dim() - 2 if axis == -2 else input.dim() - 1


def _along_axis(values: torch.Tensor, input: torch.Tensor, axis: int) -> torch.Tensor:
    shape = [1] * input.dim()
    shape[axis] = values.numel()
    return values.float().reshape(shape)


@npu_quantize.check
def _check_quantize(
    input: torch.Tensor,
    scales: torch.Tensor,
    zero_points: torch.Tensor | None,
    dtype: torch.dtype,
    axis: int,
    div_mode: bool,
) -> None:
    require_dtype("input", input, FLOATS)
    if dtype == torch.quint4x2:
        require_multiple("input's last size", input.shape[-1], int4.IN_INT32)
    require_dtype("scales", scales, (torch.float32, torch.bfloat16) if div_mode else (input.dtype,))
    size = input.shape[_quantised_axis(input, axis, div_mode)]
    for name, tensor in (("scales", scales), ("zero_points", zero_points)):
        if tensor is not None:
            require(
                tensor.numel() in (1, size),
                f"{name} has {tensor.numel()} elements; it must have 1 or {size}",
            )
    if zero_points is not None and not div_mode:
        require_dtype("zero_points", zero_points, (scales.dtype,))


def int8_product(
    x1: torch.Tensor, x2: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """The exact product of int8 matrices as int32, plus an int32 bias."""
    # float64 holds every partial sum of int8 products exactly, and its matrix product is fast.
    product = (x1.double() @ x2.double()).to(torch.int32)
    return product if bias is None else product + bias


@operator(
    "npu_quant_matmul",
    source="op-plugin docs: torch_npu.npu_quant_matmul (table of Atlas A2)",
    limits="x1, x2 int8 of 2 to 6 dimensions, or both int4 held by int32: x1 (m, k / 8), "
    "contiguous, x2 (k, n / 8), or (n, k / 8) transposed, told by its strides; scale of 1 or n "
    "elements; pertoken_scale float32, of m elements.",
    missing="int64 scales, group_sizes, dtypes of operands, y_scale.",
)
def npu_quant_matmul(
    x1: torch.Tensor,
    x2: torch.Tensor,
    scale: torch.Tensor,
    *,
    offset: torch.Tensor | None = None,
    pertoken_scale: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    output_dtype: torch.dtype | None = None,
    x1_dtype: int | None = None,
    x2_dtype: int | None = None,
    pertoken_scale_dtype: int | None = None,
    scale_dtype: int | None = None,
    group_sizes: list[int] | None = None,
    y_scale: torch.Tensor | None = None,
) -> torch.Tensor:
    """(x1 @ x2 + bias if int32) * scale * pertoken_scale + (bias if float, or offset).

    x1 (..., m, k), x2 (..., k, n), int8 or int4. Returns int8 if output_dtype is None.
    """
    if scale.dtype == torch.int64 or group_sizes:
        raise NotImplementedError(
            f"emulated NPU has no torch_npu.npu_quant_matmul with {scale.dtype} scales and "
            f"group_sizes {group_sizes}; it has float scales"
        )
    require_absent(
        "npu_quant_matmul",
        x1_dtype=x1_dtype,
        x2_dtype=x2_dtype,
        pertoken_scale_dtype=pertoken_scale_dtype,
        scale_dtype=scale_dtype,
        y_scale=y_scale,
    )
    if x1.dtype == int4.CARRIER:
        x1, x2 = int4.unpack(x1), int4.unpack_matrix(x2)
    integer_bias = bias if bias is not None and bias.dtype == torch.int32 else None
    product = int8_product(x1, x2, integer_bias)
    if output_dtype == torch.int32:
        return product
    result = product.float() * scale.float()
    if pertoken_scale is not None:
        result = result * pertoken_scale.unsqueeze(-1)
    if bias is not None and integer_bias is None:
        result = result + bias.float()
    if output_dtype in (None, torch.int8):
        if offset is not None:
            result = result + offset
        return result.round().clamp(-128, 127).to(torch.int8)
    return result.to(output_dtype)


@npu_quant_matmul.check
def _check_quant_matmul(given: Arguments) -> None:
    for name, tensor in (("x1", given.x1), ("x2", given.x2)):
        require_dtype(name, tensor, (torch.int8, int4.CARRIER))
        require_range(f"{name}'s number of dimensions", tensor.dim(), 2, 6)
        require_range(f"{name}'s last dimension", tensor.shape[-1], 1, 65535)
    require_same_dtype(x1=given.x1, x2=given.x2)
    left, (rows, columns) = given.x1.shape[-1], given.x2.shape[-2:]
    if given.x1.dtype == int4.CARRIER:
        _check_int4_operands(given)
        left, (rows, columns) = left * int4.IN_INT32, int4.matrix_shape(given.x2)[-2:]
    require(left == rows, f"x1 has {left} columns, x2 {rows} rows; they must be equal")
    require(
        given.scale.dim() == 1 and given.scale.numel() in (1, columns),
        f"scale has shape {tuple(given.scale.shape)}; it must be (1,) or ({columns},)",
    )
    _check_quant_matmul_dtypes(
        given.scale, given.offset, given.pertoken_scale, given.bias, given.output_dtype
    )
    if given.pertoken_scale is not None:
        require_shape("pertoken_scale", given.pertoken_scale, (given.x1.shape[-2],))


def _check_int4_operands(given: Arguments) -> None:
    require_contiguous("x1", given.x1)
    int4.require_packed_matrix("x2", given.x2)
    require(
        given.output_dtype in HALF_FLOATS,
        f"output_dtype is {given.output_dtype}; for int4 it must be float16 or bfloat16",
    )
    require_dtype("scale", given.scale, (torch.float32, torch.int64))
    require(given.offset is None, "offset is given; int4 has one only with group_sizes")
    require(
        given.pertoken_scale is not None or given.output_dtype == torch.float16,
        "output_dtype is bfloat16 without pertoken_scale; for int4 it must be float16 then",
    )
    require(
        given.bias is None or given.pertoken_scale is None,
        "bias is given with pertoken_scale; int4 has only one of them",
    )


def _check_quant_matmul_dtypes(
    scale: torch.Tensor,
    offset: torch.Tensor | None,
    pertoken_scale: torch.Tensor | None,
    bias: torch.Tensor | None,
    output_dtype: torch.dtype | None,
) -> None:
    require(
        output_dtype in (None, torch.int8, torch.int32, *HALF_FLOATS),
        f"output_dtype is {output_dtype}; it must be int8, int32, float16 or bfloat16",
    )
    row_scaled_half = output_dtype == torch.float16 and pertoken_scale is not None
    wide_bias = output_dtype == torch.bfloat16 or row_scaled_half
    scales: tuple[torch.dtype, ...] = (torch.float32, torch.int64)
    if output_dtype in (torch.bfloat16, torch.int32):
        scales = (torch.float32, torch.bfloat16)
    elif row_scaled_half:
        scales = (torch.float32,)
    require_dtype("scale", scale, scales)
    if bias is not None:
        allowed = (torch.int32, torch.bfloat16, torch.float32) if wide_bias else (torch.int32,)
        require_dtype("bias", bias, allowed)
    if pertoken_scale is not None:
        require_dtype("pertoken_scale", pertoken_scale, (torch.float32,))
        require(
            output_dtype in HALF_FLOATS,
            f"output_dtype is {output_dtype}; with pertoken_scale it must be float16 or bfloat16",
        )
    if offset is not None:
        require(output_dtype in (None, torch.int8), "offset is for int8 output only")
        require_dtype("offset", offset, (torch.float32,))
