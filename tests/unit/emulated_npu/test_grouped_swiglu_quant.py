# SPDX-License-Identifier: Apache-2.0
"""Product, SwiGLU and quantisation of groups of rows, against plain loops in float64."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from emulated_npu.custom_operators.grouped_matmul import (
    grouped_matmul_swiglu_quant_weight_nz as swiglu_quant_of_a_tensor,
)
from emulated_npu.custom_operators.grouped_matmul import (
    grouped_matmul_swiglu_quant_weight_nz_tensor_list as swiglu_quant,
)
from tests.support.operators.operator_testing import (
    FLOAT_DTYPES,
    few,
    random_integers,
    random_tensor,
    refused,
    seeds,
)

INNER, COLUMNS = 5, 32
HALF = COLUMNS // 2


def expected_row(
    x: list[int], weight: list[list[int]], scales: list[float], row_scale: float, limit: float
) -> list[float]:
    """What is quantised for one row."""
    hidden = []
    for column in range(COLUMNS):
        total = sum(x[k] * weight[k][column] for k in range(INNER))
        hidden.append(total * row_scale * scales[column])
    found = []
    for gate, up in zip(hidden[:HALF], hidden[HALF:], strict=True):
        if limit:
            gate, up = min(gate, limit), max(-limit, min(up, limit))
        found.append(gate / (1 + math.exp(-gate)) * up)
    return found


@few
@given(
    seeds,
    st.lists(st.integers(0, 3), min_size=1, max_size=4),
    st.integers(0, 1),
    st.sampled_from(FLOAT_DTYPES),
    st.sampled_from([0.0, 0.5, 2.0]),
    st.booleans(),
)
def test_groups_of_rows(seed, sizes, weights_over, dtype, limit, listed):
    rows = sum(sizes) + 1  # One row that no group covers, as with expert parallelism.
    x = random_integers(seed, -128, 128, (rows, INNER), torch.int8)
    count = len(sizes) + weights_over
    weight = list(random_integers(seed + 1, -128, 128, (count, INNER, COLUMNS), torch.int8))
    scales = list((random_tensor(seed + 2, (count, COLUMNS)) / 100).to(dtype))
    row_scales = random_tensor(seed + 3, (rows,)) / 20
    run = swiglu_quant if listed else swiglu_quant_of_a_tensor
    output, scale, offset = run.checked(
        x,
        weight if listed else torch.stack(weight),
        scales if listed else torch.stack(scales),
        row_scales,
        torch.tensor(sizes).cumsum(0),
        swiglu_limit=limit,
    )
    assert (output.dtype, output.shape) == (torch.int8, (rows, HALF))
    assert (scale.dtype, scale.shape) == (torch.float32, (rows,))
    assert (offset.dtype, offset.shape) == (torch.float32, (rows,) if listed else ())
    groups = [group for group, size in enumerate(sizes) for _ in range(size)]
    for row, group in enumerate(groups):
        values = expected_row(
            x[row].tolist(),
            weight[group].tolist(),
            scales[group].double().tolist(),
            float(row_scales[row]),
            limit,
        )
        largest = max(abs(value) for value in values)
        assert float(scale[row]) == pytest.approx(largest / 127, rel=1e-4, abs=1e-30)
        for value, got in zip(values, output[row].tolist(), strict=True):
            assert abs(value * 127 / largest - got) <= 0.51 if largest else got == 0
    assert output[-1].tolist() == [0] * HALF
    assert float(scale[-1]) == 0


def test_a_row_of_zeros_has_the_scale_0():
    output, scale, _ = swiglu_quant.checked(**arguments(x=torch.zeros(4, INNER, dtype=torch.int8)))
    assert output.unique().tolist() == [0]
    assert scale.tolist() == [0] * 4


def arguments(**changes):
    given = {
        "x": torch.ones(4, INNER, dtype=torch.int8),
        "weight": [torch.ones(INNER, COLUMNS, dtype=torch.int8)] * 2,
        "weight_scale": [torch.ones(COLUMNS)] * 2,
        "x_scale": torch.ones(4),
        "group_list": torch.tensor([1, 4]),
    }
    return {**given, **changes}


ONE, NARROW = torch.ones(COLUMNS), torch.ones(INNER, 48, dtype=torch.int8)
WIDE = 2 * 4096 + 32
REFUSED = {
    "bias is given; the operator ignores it": {"bias": torch.zeros(2, COLUMNS)},
    "offset is given; the operator ignores it": {"offset": torch.zeros(4)},
    "swiglu_limit is -1.0; it must be 0 or more": {"swiglu_limit": -1.0},
    "x is int32; documented: int8": {"x": torch.ones(4, INNER, dtype=torch.int32)},
    "x has 3 dimensions": {"x": torch.ones(1, 4, INNER, dtype=torch.int8)},
    "k is 65536": {"x": torch.ones(4, 65536, dtype=torch.int8)},
    "x_scale is bfloat16; documented: float32": {"x_scale": torch.ones(4).bfloat16()},
    r"x_scale has shape \(3,\)": {"x_scale": torch.ones(3)},
    "weight has no tensor": {"weight": [], "weight_scale": []},
    "weight has 2 tensors, weight_scale 1": {"weight_scale": [ONE]},
    r"weight_scale\[0\] has 2 dimensions": {"weight_scale": [ONE.view(1, -1)] * 2},
    "n is 48; it must be a multiple of 32": {
        "weight": [NARROW] * 2,
        "weight_scale": [torch.ones(48)] * 2,
    },
    "n is 8224; it must be from 1 to 8192": {
        "weight": [torch.ones(INNER, WIDE, dtype=torch.int8)] * 2,
        "weight_scale": [torch.ones(WIDE)] * 2,
    },
    r"weight\[1\] is int32": {
        "weight": [arguments()["weight"][0], torch.ones(INNER, COLUMNS, dtype=torch.int32)]
    },
    r"weight\[1\] has shape": {"weight": [arguments()["weight"][0], NARROW]},
    r"weight_scale\[1\] has shape": {"weight_scale": [ONE, torch.ones(1)]},
    r"weight_scale\[1\] is int64": {"weight_scale": [ONE, ONE.long()]},
    "they must have one dtype": {"weight_scale": [ONE, ONE.half()]},
    "group_list is int32; documented: int64": {"group_list": torch.tensor([1, 4]).int()},
    "group_list has 2 dimensions": {"group_list": torch.tensor([[1, 4]])},
    "group_list's length is 3; it must be from 1 to 2": {"group_list": torch.tensor([1, 2, 4])},
    r"group_list is \[3, 2\]; its ends must rise": {"group_list": torch.tensor([3, 2])},
    r"group_list is \[1, 5\]; .* x's 4 rows": {"group_list": torch.tensor([1, 5])},
    r"group_list is \[-1, 4\]": {"group_list": torch.tensor([-1, 4])},
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_is_not_documented_is_refused(message):
    swiglu_quant.checked(**arguments())
    with refused(message):
        swiglu_quant.checked(**arguments(**REFUSED[message]))


def in_a_tensor(**changes):
    given = arguments()
    stacked = {name: torch.stack(given[name]) for name in ("weight", "weight_scale")}
    return swiglu_quant_of_a_tensor.checked(**{**given, **stacked, **changes})


REFUSED_OF_A_TENSOR = {
    "weight is float32; documented: int8, int32": {"weight": torch.ones(2, INNER, COLUMNS)},
    "weight has 2 dimensions": {"weight": torch.ones(INNER, COLUMNS, dtype=torch.int8)},
    "weight_scale has 1 dimensions": {"weight_scale": ONE},
    "bias is given": {"bias": torch.zeros(2, COLUMNS)},
    "weight has 2 tensors, weight_scale 1": {"weight_scale": ONE.view(1, -1)},
    "n is 10272; it must be from 1 to 10240": {
        "weight": torch.ones(2, INNER, 10272, dtype=torch.int8),
        "weight_scale": torch.ones(2, 10272),
    },
    "group_list's length is 3": {"group_list": torch.tensor([1, 2, 4])},
}


@pytest.mark.parametrize("message", REFUSED_OF_A_TENSOR)
def test_what_is_not_documented_of_a_tensor_is_refused(message):
    in_a_tensor()
    with refused(message):
        in_a_tensor(**REFUSED_OF_A_TENSOR[message])


def test_weights_of_int4_are_missing():
    with pytest.raises(NotImplementedError, match=r"_weight_nz with weight torch\.int32"):
        in_a_tensor(weight=torch.ones(2, INNER, COLUMNS // 8, dtype=torch.int32))
