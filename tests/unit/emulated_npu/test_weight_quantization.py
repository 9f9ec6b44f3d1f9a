# SPDX-License-Identifier: Apache-2.0
"""The product with 8-bit weights against a scalar reference."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from emulated_npu.operators.weight_quantization import npu_weight_quant_batchmatmul
from tests.support.operators.operator_testing import (
    FLOAT_DTYPES,
    assert_near,
    few,
    random_integers,
    random_tensor,
    refused,
    seeds,
)

ROWS, INNER, COLUMNS, GROUP = 3, 80, 4, 32
SHAPES = {
    "tensor": (1,),
    "channels": (COLUMNS,),
    "channels as a row": (1, COLUMNS),
    "groups": (3, COLUMNS),  # of 32, 32 and 16 rows
}


def factor(values: torch.Tensor, row: int, column: int) -> float:
    if values.numel() == 1:
        return float(values)
    if values.numel() == COLUMNS:
        return float(values.reshape(-1)[column])
    return float(values[row // GROUP, column])


@few
@given(
    seeds,
    st.sampled_from(FLOAT_DTYPES[:2]),
    st.sampled_from(list(SHAPES)),
    st.booleans(),
    st.booleans(),
)
def test_product(seed, dtype, kind, with_offset, with_bias):
    x = random_tensor(seed, (ROWS, INNER), dtype, spread=0.5)
    weight = random_integers(seed + 1, -128, 128, (INNER, COLUMNS), torch.int8)
    scale = random_tensor(seed + 2, SHAPES[kind], dtype, spread=0.02)
    offset = random_tensor(seed + 3, SHAPES[kind], dtype, spread=9) if with_offset else None
    bias_dtype = torch.float32 if dtype == torch.bfloat16 else dtype
    bias = random_tensor(seed + 4, (COLUMNS,), bias_dtype) if with_bias else None
    actual = npu_weight_quant_batchmatmul.checked(
        x, weight, scale, offset, bias=bias, antiquant_group_size=GROUP if kind == "groups" else 0
    )
    assert actual.dtype == dtype
    expected = [[float(bias[column]) if with_bias else 0.0 for column in range(COLUMNS)]] * ROWS
    expected = [list(row) for row in expected]
    for row in range(ROWS):
        for column in range(COLUMNS):
            for k in range(INNER):
                value = int(weight[k, column])
                if offset is not None:
                    value += factor(offset, k, column)
                expected[row][column] += float(x[row, k]) * value * factor(scale, k, column)
    assert_near(actual, expected)


def arguments(**changes):
    given = {
        "x": torch.ones(ROWS, INNER).half(),
        "weight": torch.ones(INNER, COLUMNS, dtype=torch.int8),
        "antiquant_scale": torch.ones(COLUMNS).half(),
    }
    return {**given, **changes}


REFUSED = {
    "x is float32": {"x": torch.ones(ROWS, INNER)},
    "x has shape": {"x": torch.ones(ROWS, INNER + 1).half()},
    "one dtype": {"antiquant_scale": torch.ones(COLUMNS).bfloat16()},
    "antiquant_scale has shape": {"antiquant_scale": torch.ones(COLUMNS, 1).half()},
    "antiquant_offset has shape": {"antiquant_offset": torch.ones(1, COLUMNS).half()},
    "antiquant_group_size is 48": {"antiquant_group_size": 48},
    "bias is float32": {"bias": torch.ones(COLUMNS)},
    "bias has shape": {"bias": torch.ones(COLUMNS, 1).half()},
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_is_not_documented_is_refused(message):
    with refused(message):
        npu_weight_quant_batchmatmul.checked(**arguments(**REFUSED[message]))


def test_what_is_missing_is_named():
    with pytest.raises(
        NotImplementedError, match=r"no torch_npu\.npu_weight_quant_batchmatmul with quant_scale"
    ):
        npu_weight_quant_batchmatmul.checked(**arguments(quant_scale=torch.ones(COLUMNS)))
