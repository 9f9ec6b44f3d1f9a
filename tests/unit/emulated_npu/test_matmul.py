# SPDX-License-Identifier: Apache-2.0
"""Matrix products against plain loops in float64."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from emulated_npu.custom_operators.matmul import batch_matmul_transpose
from emulated_npu.operators.matmul import (
    _npu_matmul_add_fp32,
    npu_grouped_matmul,
    npu_transpose_batchmatmul,
)
from tests.support.operators.operator_testing import (
    FLOAT_DTYPES,
    assert_near,
    few,
    float_dtypes,
    random_integers,
    random_tensor,
    refused,
    seeds,
)

half_dtypes = st.sampled_from(FLOAT_DTYPES[:2])
group_sizes = st.lists(st.integers(0, 3), min_size=2, max_size=4)


def product(left: list[list[float]], right: list[list[float]]) -> list[list[float]]:
    return [
        [sum(a * right[i][column] for i, a in enumerate(row)) for column in range(len(right[0]))]
        for row in left
    ]


def group_of_rows(sizes: list[int]) -> list[int]:
    return [group for group, size in enumerate(sizes) for _ in range(size)]


def group_list_of(sizes: list[int], list_type: int) -> torch.Tensor:
    values = torch.tensor(sizes, dtype=torch.int64)
    return values if list_type == 1 else values.cumsum(0)


@few
@given(seeds, float_dtypes, group_sizes, st.integers(0, 1), st.booleans(), st.booleans())
def test_grouped_matmul(seed, dtype, sizes, list_type, with_bias, listed):
    rows = sum(sizes) + 1  # One row that no group covers, as with expert parallelism.
    x = random_tensor(seed, (rows, 4), dtype)
    # Strided, as vllm-ascend passes a transposed view.
    weight = random_tensor(seed + 1, (len(sizes), 5, 4), dtype).transpose(1, 2)
    bias_dtype = torch.float16 if dtype == torch.float16 else torch.float32
    bias = random_tensor(seed + 2, (len(sizes), 5), bias_dtype)
    (result,) = npu_grouped_matmul.checked(
        [x],
        list(weight) if listed else [weight],
        bias=(list(bias) if listed else [bias]) if with_bias else None,
        group_list=group_list_of(sizes, list_type),
        split_item=2,
        group_type=0,
        group_list_type=list_type,
    )
    expected = []
    for row, group in zip(x.double().tolist(), group_of_rows(sizes), strict=False):
        (values,) = product([row], weight[group].double().tolist())
        added = bias[group].double().tolist() if with_bias else [0.0] * 5
        expected.append([a + b for a, b in zip(values, added, strict=True)])
    assert result.dtype == dtype
    assert_near(result, [*expected, [0.0] * 5])


@few
@given(seeds, group_sizes, st.sampled_from([None, torch.int32, torch.float32]), st.booleans())
def test_grouped_matmul_of_int8(seed, sizes, bias_dtype, row_scaled):
    rows = sum(sizes)
    x = random_integers(seed, -128, 128, (rows, 4), torch.int8)
    weight = random_integers(seed + 1, -128, 128, (len(sizes), 4, 5), torch.int8)
    scale = random_tensor(seed + 2, (len(sizes), 5)) / 1000
    row_scales = random_tensor(seed + 3, (rows,)) if row_scaled else None
    bias = None
    if bias_dtype is not None:
        bias = random_tensor(seed + 4, (len(sizes), 5), spread=100).to(bias_dtype)
    (result,) = npu_grouped_matmul.checked(
        [x],
        [weight],
        bias=None if bias is None else [bias],
        scale=[scale],
        per_token_scale=None if row_scales is None else [row_scales],
        group_list=group_list_of(sizes, 1),
        split_item=3,
        group_type=0,
        group_list_type=1,
        output_dtype=torch.bfloat16,
    )
    expected = []
    for row, group in enumerate(group_of_rows(sizes)):
        (values,) = product([x[row].double().tolist()], weight[group].double().tolist())
        added = [0.0] * 5 if bias is None else bias[group].double().tolist()
        factor = 1.0 if row_scales is None else float(row_scales[row])
        for column, value in enumerate(values):
            factors = float(scale[group, column]) * factor
            integer = bias_dtype == torch.int32
            values[column] = (value + (added[column] if integer else 0)) * factors
            values[column] += 0 if integer else added[column]
        expected.append(values)
    assert_near(result, expected)


@few
@given(seeds, float_dtypes, st.integers(1, 3), st.integers(1, 3), st.booleans())
def test_transpose_batchmatmul(seed, dtype, batch, rows, swapped):
    x = random_tensor(seed, (batch, rows, 16), dtype, spread=0.5)
    weight = random_tensor(seed + 1, (batch, 16, 16), dtype, spread=0.5)
    if swapped:
        result = npu_transpose_batchmatmul.checked(
            x.transpose(0, 1), weight, perm_x1=(1, 0, 2), perm_y=(1, 0, 2)
        )
    else:
        result = npu_transpose_batchmatmul.checked(x, weight)
    assert result.shape == (rows, batch, 16)
    assert result.is_contiguous()
    for i in range(batch):
        expected = product(x[i].double().tolist(), weight[i].double().tolist())
        assert_near(result[:, i], expected)


@few
@given(seeds, half_dtypes, st.integers(1, 3), st.integers(1, 3), st.integers(1, 5))
def test_batch_matmul_transpose(seed, dtype, tokens, heads, columns):
    a = random_tensor(seed, (tokens, heads, 4), dtype)
    b = random_tensor(seed + 1, (heads, 4, columns), dtype)
    c = torch.full((tokens, heads, columns), 7.0, dtype=dtype)
    batch_matmul_transpose.checked(a, b, c)
    for head in range(heads):
        assert_near(c[:, head], product(a[:, head].double().tolist(), b[head].double().tolist()))


@few
@given(seeds, half_dtypes)
def test_matmul_add_fp32_accumulates(seed, dtype):
    x, weight = random_tensor(seed, (3, 4), dtype), random_tensor(seed + 1, (3, 5), dtype)
    c = random_tensor(seed + 2, (4, 5))
    before = c.double()
    _npu_matmul_add_fp32.checked(x, weight, c)
    change = product(x.t().double().tolist(), weight.double().tolist())
    assert_near(c, before + torch.tensor(change, dtype=torch.float64))


def grouped(x: torch.Tensor, weight: torch.Tensor, groups: list[int], **changes: object):
    arguments = {"split_item": 2, "group_type": 0, "group_list_type": 1, **changes}
    group_list = torch.tensor(groups, dtype=torch.int64)
    return npu_grouped_matmul.checked([x], [weight], group_list=group_list, **arguments)


def test_grouped_matmul_refusals():
    x, weight = torch.zeros(3, 4), torch.zeros(2, 4, 5)
    with refused("npu_grouped_matmul: x is float32, weight is float16"):
        grouped(x, weight.half(), [1, 2])
    with refused("group_list has 3 groups, weight 2"):
        grouped(x, weight, [1, 1, 1])
    with refused(r"group sizes are \[2, 2\]"):
        grouped(x, weight, [2, 2])
    with refused("group_list of type 1 has one group"):
        grouped(x, weight[:1], [3])
    with refused("bias is float32; documented: float16"):
        grouped(x.half(), weight.half(), [1, 2], bias=[torch.zeros(2, 5)])
    with refused("bias is bfloat16; documented: float32"):
        grouped(x.bfloat16(), weight.bfloat16(), [1, 2], bias=[torch.zeros(2, 5).bfloat16()])
    with refused("scale is missing; int8 x needs it"):
        grouped(x.to(torch.int8), weight.to(torch.int8), [1, 2], output_dtype=torch.float16)
    with refused(r"weight has shape \(6, 5\); it must be \(4, any\)"):
        grouped(x, torch.zeros(2, 6, 5), [1, 2])


def test_other_refusals():
    x = torch.zeros(2, 3, 16)
    with refused("perm_y is \\(0, 1, 2\\)"):
        npu_transpose_batchmatmul.checked(x, torch.zeros(2, 16, 16), perm_y=(0, 1, 2))
    with refused("N is 8; it must be a multiple of 16"):
        npu_transpose_batchmatmul.checked(x, torch.zeros(2, 16, 8))
    with refused(r"tensor_c has shape \(2, 3, 4\)"):
        half = x.half()
        batch_matmul_transpose.checked(half, torch.zeros(3, 16, 5).half(), half[..., :4])
    with refused("tensor_a is float32; documented: float16, bfloat16"):
        batch_matmul_transpose.checked(x, x, x)
    with refused("C is float16; documented: float32"):
        half = torch.zeros(2, 2).half()
        _npu_matmul_add_fp32.checked(half, half, half)


def test_missing_modes_fail_by_name():
    x, weight = torch.zeros(3, 4), torch.zeros(2, 4, 5)
    with pytest.raises(NotImplementedError, match="npu_grouped_matmul of 1 x with split_item 0"):
        npu_grouped_matmul.kernel([x], [weight], group_list=[1, 3])
    with pytest.raises(NotImplementedError, match="npu_grouped_matmul with antiquant_scale"):
        npu_grouped_matmul.kernel(
            [x], [weight], group_list=[1, 3], split_item=2, antiquant_scale=[weight]
        )
    with pytest.raises(NotImplementedError, match="npu_transpose_batchmatmul with bias"):
        npu_transpose_batchmatmul.kernel(weight, weight, bias=x)
