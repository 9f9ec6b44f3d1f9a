# SPDX-License-Identifier: Apache-2.0
"""Matrix products: grouped, with transposed batches, accumulating."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from emulated_npu.operators.binding import Arguments
from emulated_npu.operators.quantization import int8_product
from emulated_npu.operators.registry import operator
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
from emulated_npu.unwritten import undefined

CUMULATIVE, COUNT = 0, 1
INNER_LIMIT = 65536
MAX_GROUPS = 1024
MAX_LIST = 128
AS_IT_IS, BATCH_SECOND = (0, 1, 2), (1, 0, 2)

TensorList = Sequence[torch.Tensor]


def _group_sizes(group_list: torch.Tensor | Sequence[int], group_list_type: int) -> list[int]:
    values = group_list.tolist() if isinstance(group_list, torch.Tensor) else list(group_list)
    if group_list_type == COUNT:
        return values
    return [end - start for start, end in zip([0, *values], values, strict=False)]


def _weight_of_group(weight: TensorList) -> list[torch.Tensor]:
    return list(weight[0].unbind(0)) if weight[0].dim() == 3 else list(weight)


def _entry(tensors: TensorList | None, group: int, rank: int) -> torch.Tensor | None:
    """The entry of one group: a row of the only tensor, or a tensor of its own."""
    if not tensors:
        return None
    if tensors[0].dim() > rank:
        return tensors[0][group]
    return tensors[group]


@operator(
    "npu_grouped_matmul",
    source="op-plugin docs: torch_npu.npu_grouped_matmul",
    limits="One x (rows, k), one weight (groups, k, n) or a list of (k, n), split_item 2 or 3, "
    "group_type 0. float16, bfloat16, float32, or int8 with scale and per_token_scale; bias "
    "float16 for float16, float32 for bfloat16. The documentation asks for one-dimensional bias "
    "and scale, and for groups that cover all rows; vllm-ascend passes (groups, n) and, with "
    "expert parallelism, fewer rows: accepted, the rows left over (undefined on hardware) are "
    "zero.",
    missing="Several x, split_item 0 or 1, group_type other than 0, group_list_type 2, antiquant, "
    "offset, activations, int4, dtypes of operands.",
)
def npu_grouped_matmul(
    x: TensorList,
    weight: TensorList,
    *,
    bias: TensorList | None = None,
    scale: TensorList | None = None,
    offset: TensorList | None = None,
    antiquant_scale: TensorList | None = None,
    antiquant_offset: TensorList | None = None,
    per_token_scale: TensorList | None = None,
    group_list: torch.Tensor | Sequence[int] | None = None,
    activation_input: TensorList | None = None,
    activation_quant_scale: TensorList | None = None,
    activation_quant_offset: TensorList | None = None,
    split_item: int = 0,
    group_type: int | None = None,
    group_list_type: int = 0,
    act_type: int = 0,
    tuning_config: Sequence[int] | None = None,
    output_dtype: torch.dtype | None = None,
    x_dtype: int | None = None,
    weight_dtype: int | None = None,
    scale_dtype: int | None = None,
    per_token_scale_dtype: int | None = None,
) -> list[torch.Tensor]:
    """Multiply consecutive groups of rows of x by a weight each, and add a bias.

    group_list: ends of the groups (type 0) or their sizes (type 1).

    int8: (x @ weight + int32 bias) * scale * per_token_scale + float bias. Returns a list of one
    tensor (rows, n).
    """
    _require_supported(x, split_item, group_type, group_list_type, group_list)
    require_absent(
        "torch_npu.npu_grouped_matmul",
        offset=offset,
        antiquant_scale=antiquant_scale,
        antiquant_offset=antiquant_offset,
        activation_input=activation_input,
        activation_quant_scale=activation_quant_scale,
        activation_quant_offset=activation_quant_offset,
        act_type=act_type,
        x_dtype=x_dtype,
        weight_dtype=weight_dtype,
        scale_dtype=scale_dtype,
        per_token_scale_dtype=per_token_scale_dtype,
    )
    assert group_list is not None
    rows, weights = x[0], _weight_of_group(weight)
    shape = rows.shape[0], weights[0].shape[-1]
    result = undefined(rows.new_empty(shape, dtype=output_dtype or rows.dtype))
    start = 0
    for group, size in enumerate(_group_sizes(group_list, group_list_type)):
        part = slice(start, start + size)
        start += size
        if size:
            result[part] = _group_product(
                rows[part],
                weights[group],
                _entry(bias, group, 1),
                _entry(scale, group, 1),
                None if not per_token_scale else per_token_scale[0][part],
            )
    return [result]


def _group_product(
    rows: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    scale: torch.Tensor | None,
    row_scales: torch.Tensor | None,
) -> torch.Tensor:
    if scale is None:
        if bias is None:
            return rows @ weight
        # In float32, so that product and bias are rounded to the output's dtype once, together.
        return rows.float() @ weight.float() + bias.float()
    integer_bias = bias if bias is not None and bias.dtype == torch.int32 else None
    product = int8_product(rows, weight, integer_bias).float() * scale.float()
    if row_scales is not None:
        product = product * row_scales.unsqueeze(-1)
    return product if bias is None or integer_bias is not None else product + bias.float()


def _require_supported(
    x: TensorList,
    split_item: int,
    group_type: int | None,
    group_list_type: int,
    group_list: torch.Tensor | Sequence[int] | None,
) -> None:
    supported = (
        len(x) == 1
        and split_item in (2, 3)
        and group_type in (None, 0)
        and group_list_type in (CUMULATIVE, COUNT)
        and group_list is not None
    )
    if not supported:
        raise NotImplementedError(
            f"emulated NPU has no torch_npu.npu_grouped_matmul of {len(x)} x with split_item "
            f"{split_item}, group_type {group_type}, group_list_type {group_list_type}; it has one "
            f"x, split_item 2 or 3, group_type 0, a group_list of type 0 or 1"
        )


@npu_grouped_matmul.check
def _check_grouped_matmul(given: Arguments) -> None:
    _require_supported(
        given.x, given.split_item, given.group_type, given.group_list_type, given.group_list
    )
    require_range("the number of weights", len(given.weight), 1, MAX_LIST)
    require_rank("x", given.x[0], 2)
    weights = _weight_of_group(given.weight)
    require_shape("weight", weights[0], (given.x[0].shape[1], None))
    for name, size in (("x", given.x[0].shape[-1]), ("weight", weights[0].shape[-1])):
        require_range(f"{name}'s last dimension", size, 1, INNER_LIMIT - 1)
    _check_groups(given.x[0], weights, given.group_list, given.group_list_type)
    if given.x[0].dtype == torch.int8:
        _check_quantised_dtypes(
            weights[0], given.bias, given.scale, given.per_token_scale, given.output_dtype
        )
    else:
        _check_float_dtypes(given.x[0], weights[0], given.bias, given.scale, given.output_dtype)


def _check_groups(
    x: torch.Tensor,
    weights: list[torch.Tensor],
    group_list: torch.Tensor | Sequence[int],
    group_list_type: int,
) -> None:
    if isinstance(group_list, torch.Tensor):
        require_dtype("group_list", group_list, (torch.int64,))
        require_rank("group_list", group_list, 1)
    sizes = _group_sizes(group_list, group_list_type)
    require_range("the number of groups", len(sizes), 1, MAX_GROUPS)
    require(
        len(sizes) == len(weights),
        f"group_list has {len(sizes)} groups, weight {len(weights)}; they must be as many",
    )
    require(
        min(sizes) >= 0 and sum(sizes) <= x.shape[0],
        f"group sizes are {sizes}; none may be negative and their sum at most x's rows, "
        f"{x.shape[0]}",
    )
    if group_list_type == COUNT:
        require(len(sizes) > 1, "group_list of type 1 has one group; it must have 2 or more")


def _check_float_dtypes(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: TensorList | None,
    scale: TensorList | None,
    output_dtype: torch.dtype | None,
) -> None:
    require_dtype("x", x, FLOATS)
    require_same_dtype(x=x, weight=weight)
    require(not scale, f"scale is given for x of {x.dtype}; it is for int8")
    require(
        output_dtype in (None, x.dtype),
        f"output_dtype is {output_dtype}; it must be that of x, {x.dtype}",
    )
    if bias:
        wanted = torch.float16 if x.dtype == torch.float16 else torch.float32
        require_dtype("bias", bias[0], (wanted,))


def _check_quantised_dtypes(
    weight: torch.Tensor,
    bias: TensorList | None,
    scale: TensorList | None,
    per_token_scale: TensorList | None,
    output_dtype: torch.dtype | None,
) -> None:
    require_dtype("weight", weight, (torch.int8,))
    require(bool(scale), "scale is missing; int8 x needs it")
    assert scale
    if output_dtype == torch.float16:
        require_dtype("scale", scale[0], (torch.float32,))
    else:
        require_dtype("scale", scale[0], (torch.bfloat16, torch.float32))
    require(
        output_dtype in FLOATS,
        f"output_dtype is {output_dtype}; for int8 x it must be float16 or bfloat16",
    )
    if bias:
        require_dtype("bias", bias[0], (torch.int32, *FLOATS))
    if per_token_scale:
        require_dtype("per_token_scale", per_token_scale[0], (torch.float32,))


@operator(
    "npu_transpose_batchmatmul",
    source="op-plugin docs: torch_npu.npu_transpose_batchmatmul",
    limits="perm_x1 (0,1,2) or (1,0,2), perm_x2 (0,1,2), perm_y (1,0,2); inner sizes multiples of "
    "16; one dtype for both.",
    missing="bias, scale, batch_split_factor over 1.",
)
def npu_transpose_batchmatmul(
    input: torch.Tensor,
    weight: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    scale: torch.Tensor | None = None,
    perm_x1: Sequence[int] | None = None,
    perm_x2: Sequence[int] | None = None,
    perm_y: Sequence[int] | None = None,
    batch_split_factor: int = 1,
) -> torch.Tensor:
    """Batched matrix product whose operands and result are permuted.

    (B, M, K) @ (B, K, N), batch first after perm_x1 and perm_x2, by default as they are; the result
    is permuted by perm_y, by default (1, 0, 2), and contiguous.
    """
    if bias is not None or scale is not None or batch_split_factor != 1:
        raise NotImplementedError(
            "emulated NPU has no torch_npu.npu_transpose_batchmatmul with bias, scale or "
            "batch_split_factor"
        )
    product = torch.bmm(input.permute(*perm_x1 or AS_IT_IS), weight.permute(*perm_x2 or AS_IT_IS))
    return product.permute(*perm_y or BATCH_SECOND).contiguous()


@npu_transpose_batchmatmul.check
def _check_transpose_batchmatmul(
    input: torch.Tensor,
    weight: torch.Tensor,
    perm_x1: Sequence[int] | None,
    perm_x2: Sequence[int] | None,
    perm_y: Sequence[int] | None,
) -> None:
    perm_x1, perm_x2 = perm_x1 or AS_IT_IS, perm_x2 or AS_IT_IS
    for name, permutation, allowed in (
        ("perm_x1", perm_x1, ((0, 1, 2), (1, 0, 2))),
        ("perm_x2", perm_x2, ((0, 1, 2),)),
        ("perm_y", perm_y or BATCH_SECOND, (BATCH_SECOND,)),
    ):
        require(
            tuple(permutation) in allowed,
            f"{name} is {tuple(permutation)}; it must be {' or '.join(map(str, allowed))}",
        )
    require_dtype("input", input, FLOATS)
    require_same_dtype(input=input, weight=weight)
    require_rank("input", input, 3)
    batch, _, inner = (input.shape[axis] for axis in perm_x1)
    require_shape("weight", weight, (batch, inner, None))
    for name, size in (("K", inner), ("N", weight.shape[-1])):
        require(
            size % 16 == 0 and size < INNER_LIMIT,
            f"{name} is {size}; it must be a multiple of 16 below {INNER_LIMIT}",
        )


@operator(
    "_npu_matmul_add_fp32",
    source="vllm-ascend: NPUWorker._warm_up_atb, its only use",
    limits="x (m, k) and weight (m, n) float16 or bfloat16, C (k, n) float32.",
    writes=("C",),
)
def _npu_matmul_add_fp32(x: torch.Tensor, weight: torch.Tensor, C: torch.Tensor) -> None:  # noqa: N803
    """C += transposed(x) @ weight: a gradient of weights, accumulated in float32."""
    C.add_(x.float().t() @ weight.float())


@_npu_matmul_add_fp32.check
def _check_matmul_add_fp32(x: torch.Tensor, weight: torch.Tensor, C: torch.Tensor) -> None:  # noqa: N803
    require_dtype("x", x, (torch.float16, torch.bfloat16))
    require_same_dtype(x=x, weight=weight)
    require_dtype("C", C, (torch.float32,))
    require_shape("weight", weight, (x.shape[0], None))
    require_shape("C", C, (x.shape[1], weight.shape[1]))
