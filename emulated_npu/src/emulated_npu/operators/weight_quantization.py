# SPDX-License-Identifier: Apache-2.0
"""A product with 8- or 4-bit weights and 16-bit activations: W8A16, dense layers of W4A8."""

from __future__ import annotations

import torch

from emulated_npu.operators import int4
from emulated_npu.operators.binding import Arguments
from emulated_npu.operators.registry import operator
from emulated_npu.operators.requirements import (
    HALF_FLOATS,
    require,
    require_absent,
    require_dtype,
    require_range,
    require_rank,
    require_same_dtype,
    require_shape,
)

NAME = "npu_weight_quant_batchmatmul"
SIZE_LIMIT = 65535
GROUP_MULTIPLE = 32


@operator(
    NAME,
    source="op-plugin docs: torch_npu.npu_weight_quant_batchmatmul",
    limits="x (m, k) float16 or bfloat16, weight (k, n) int8, or int4 held by int32: (k, n / 8), "
    "or (n, k / 8) transposed, told by its strides; k and n up to 65535. antiquant_scale and "
    "antiquant_offset of x's dtype, (1,) or (1, 1), (n,) or (1, n), or (ceil(k / group), n) "
    "with antiquant_group_size a multiple of 32 below k. bias (n,) or (1, n), float16 for float16, "
    "float32 for bfloat16.",
    missing="int64 antiquant_scale, quant_scale, quant_offset and weight_dtype.",
)
def npu_weight_quant_batchmatmul(
    x: torch.Tensor,
    weight: torch.Tensor,
    antiquant_scale: torch.Tensor,
    antiquant_offset: torch.Tensor | None = None,
    quant_scale: torch.Tensor | None = None,
    quant_offset: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    antiquant_group_size: int = 0,
    inner_precise: int = 0,
    weight_dtype: int | None = None,
) -> torch.Tensor:
    """x @ ((weight + antiquant_offset) * antiquant_scale) + bias: (m, n), of x's dtype.

    Computed in float32 and rounded once. The documentation does not say whether the device rounds
    the weights to x's dtype before the product.
    """
    if quant_scale is not None or quant_offset is not None:
        raise NotImplementedError(f"emulated NPU has no torch_npu.{NAME} with quant_scale")
    require_absent(NAME, weight_dtype=weight_dtype)
    integers = int4.unpack_matrix(weight) if weight.dtype == int4.CARRIER else weight
    values = integers.float()
    if antiquant_offset is not None:
        values = values + _by_row(antiquant_offset, values, antiquant_group_size)
    product = x.float() @ (values * _by_row(antiquant_scale, integers, antiquant_group_size))
    if bias is not None:
        product = product + bias.float().reshape(-1)
    return product.to(x.dtype)


def _by_row(values: torch.Tensor, weight: torch.Tensor, group: int) -> torch.Tensor:
    """`values` of the tensor, of its columns or of its groups of rows, to go with weight (k, n)."""
    wide = values.float().reshape(-1, values.shape[-1])
    if wide.shape[0] == 1:
        return wide
    return wide.repeat_interleave(group, dim=0)[: weight.shape[0]]


@npu_weight_quant_batchmatmul.check
def _check(given: Arguments) -> None:
    require_dtype("x", given.x, HALF_FLOATS)
    require_dtype("weight", given.weight, (torch.int8, int4.CARRIER))
    require_rank("x", given.x, 2)
    require_rank("weight", given.weight, 2)
    inner, columns = given.weight.shape
    if given.weight.dtype == int4.CARRIER:
        int4.require_packed_matrix("weight", given.weight)
        inner, columns = int4.matrix_shape(given.weight)
    require_range("k", inner, 1, SIZE_LIMIT)
    require_range("n", columns, 1, SIZE_LIMIT)
    require_shape("x", given.x, (None, inner))
    require_same_dtype(
        x=given.x, antiquant_scale=given.antiquant_scale, antiquant_offset=given.antiquant_offset
    )
    _check_scale(given, inner, columns)
    if given.antiquant_offset is not None:
        require_shape("antiquant_offset", given.antiquant_offset, given.antiquant_scale.shape)
    if given.bias is not None:
        dtype = torch.float32 if given.x.dtype == torch.bfloat16 else given.x.dtype
        require_dtype("bias", given.bias, (dtype,))
        require(
            tuple(given.bias.shape) in ((columns,), (1, columns)),
            f"bias has shape {tuple(given.bias.shape)}; it must be ({columns},) or (1, {columns})",
        )


def _check_scale(given: Arguments, inner: int, columns: int) -> None:
    group = given.antiquant_group_size
    allowed = [(1,), (1, 1), (columns,), (1, columns)]
    if group:
        require(
            GROUP_MULTIPLE <= group < inner and group % GROUP_MULTIPLE == 0,
            f"antiquant_group_size is {group}; it must be a multiple of {GROUP_MULTIPLE} below k, "
            f"which is {inner}",
        )
        allowed = [(-(-inner // group), columns)]
    shape = tuple(given.antiquant_scale.shape)
    require(
        shape in allowed,
        f"antiquant_scale has shape {shape}; it must be {' or '.join(map(str, allowed))}",
    )
