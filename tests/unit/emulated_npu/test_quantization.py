# SPDX-License-Identifier: Apache-2.0
"""Quantisation, int8 products and norms fused with them, against scalar references."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from emulated_npu.operators.mx_quantization import (
    npu_add_rms_norm_dynamic_mx_quant,
    npu_dynamic_mx_quant,
    npu_rms_norm_dynamic_mx_quant,
)
from emulated_npu.operators.norm_quantization import (
    npu_add_rms_norm_dynamic_quant,
    npu_add_rms_norm_quant,
)
from emulated_npu.operators.quantization import (
    npu_dynamic_block_quant,
    npu_dynamic_quant,
    npu_quant_matmul,
    npu_quantize,
)
from tests.support.operators.operator_testing import (
    FLOAT_DTYPES,
    assert_near,
    few,
    random_integers,
    random_tensor,
    refused,
    seeds,
)

half_dtypes = st.sampled_from(FLOAT_DTYPES[:2])


@few
@given(seeds, half_dtypes, st.integers(1, 5), st.sampled_from(["none", "shared", "grouped"]))
def test_dynamic_quant(seed, dtype, rows, smoothing):
    x = random_tensor(seed, (rows, 6), dtype)
    smooth = group_index = None
    factors = [[1.0] * 6] * rows
    if smoothing == "shared":
        smooth = random_tensor(seed + 1, (6,), dtype)
        factors = [smooth.double().tolist()] * rows
    elif smoothing == "grouped":
        smooth = random_tensor(seed + 1, (2, 6), dtype)
        group_index = torch.tensor([rows // 2, rows], dtype=torch.int32)
        factors = [smooth[0 if row < rows // 2 else 1].double().tolist() for row in range(rows)]
    quantised, scales = npu_dynamic_quant.checked(x, smooth_scales=smooth, group_index=group_index)
    assert quantised.dtype == torch.int8
    assert scales.shape == (rows,)
    for row, values in enumerate(x.double().tolist()):
        scaled = [a * b for a, b in zip(values, factors[row], strict=True)]
        scale = max(abs(value) for value in scaled) / 127
        assert float(scales[row]) == pytest.approx(scale, rel=1e-5)
        for value, got in zip(scaled, quantised[row].tolist(), strict=True):
            assert abs(value - got * scale) <= (0.5 + 1e-3) * scale


def test_dynamic_quant_of_a_row_of_zeros():
    quantised, scales = npu_dynamic_quant.checked(torch.zeros(2, 3).half())
    assert quantised.tolist() == [[0] * 3] * 2
    assert scales.tolist() == [0, 0]


@few
@given(seeds, half_dtypes, st.sampled_from([128, 130, 512]), st.sampled_from([0.0, 0.05]))
def test_dynamic_block_quant(seed, dtype, columns, min_scale):
    x = random_tensor(seed, (2, 3, columns), dtype)
    x[1, 2, :128] = 0
    quantised, scales = npu_dynamic_block_quant.checked(x, min_scale=min_scale)
    assert quantised.shape == x.shape
    assert quantised.dtype == torch.int8
    for row, values in enumerate(x.double().view(6, columns).tolist()):
        expected = []
        for start in range(0, columns, 128):
            block = values[start : start + 128]
            expected.append(max(max(abs(value) for value in block) / 127, min_scale))
            for value, got in zip(block, quantised.view(6, columns)[row, start:], strict=False):
                assert abs(value - int(got) * expected[-1]) <= (0.5 + 1e-3) * expected[-1]
        assert scales.view(6, -1)[row].tolist() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x": torch.zeros(2, 128)}, "x is float32"),
        ({"x": torch.zeros(128).half()}, "number of dimensions"),
        ({"min_scale": -1.0}, "min_scale is -1.0"),
        ({"round_mode": "floor"}, "round_mode is floor"),
        ({"dst_type": 2}, "dst_type is 2"),
        ({"row_block_size": 2}, "row_block_size is 2"),
        ({"col_block_size": 64}, "col_block_size is 64"),
    ],
)
def test_refused_block_quantisation(changes, message):
    with refused(message):
        npu_dynamic_block_quant.checked(**{"x": torch.zeros(2, 128).half(), **changes})


@few
@given(seeds, st.booleans(), st.booleans(), st.sampled_from([torch.qint8, torch.quint8]))
def test_quantize(seed, div_mode, with_zero_points, dtype):
    if not div_mode:
        dtype = torch.qint8
    x = random_tensor(seed, (3, 4), spread=200)
    scales = random_tensor(seed + 1, (4,)) + 2.5
    zeros = None
    if with_zero_points:
        zeros = random_integers(seed, -20, 20, (4,)).to(torch.int32 if div_mode else torch.float32)
    result = npu_quantize.checked(x, scales, zeros, dtype, -1, div_mode)
    low, high = (-128, 127) if dtype == torch.qint8 else (0, 255)
    for row, values in enumerate(x.double().tolist()):
        for column, value in enumerate(values):
            factor = float(scales[column])
            exact = value / factor if div_mode else value * factor
            exact += 0 if zeros is None else float(zeros[column])
            assert abs(int(result[row, column]) - min(max(exact, low), high)) <= 0.5 + 1e-3


def test_quantize_along_the_last_but_one_axis():
    x = torch.tensor([[2.0, 4.0], [6.0, 8.0]])
    scales = torch.tensor([1.0, 0.5])
    assert npu_quantize.checked(x, scales, None, torch.qint8, -2, False).tolist() == [
        [2, 4],
        [3, 4],
    ]


@few
@given(
    seeds,
    st.sampled_from([torch.bfloat16, torch.float16, torch.int8, torch.int32]),
    st.sampled_from([None, torch.int32, torch.float32]),
    st.booleans(),
)
def test_quant_matmul(seed, output, bias_dtype, row_scaled):
    row_scaled = row_scaled and output in (torch.bfloat16, torch.float16)
    if output in (torch.int8, torch.int32) or (output == torch.float16 and not row_scaled):
        bias_dtype = torch.int32 if bias_dtype else None
    x1 = random_integers(seed, -128, 128, (3, 6), torch.int8)
    x2 = random_integers(seed + 1, -128, 128, (6, 4), torch.int8)
    scale = random_tensor(seed + 2, (4,)) / 1000
    rows = random_tensor(seed + 3, (3,)) if row_scaled else None
    bias = None if bias_dtype is None else random_tensor(seed + 4, (4,), spread=99).to(bias_dtype)
    result = npu_quant_matmul.checked(
        x1, x2, scale, pertoken_scale=rows, bias=bias, output_dtype=output
    )
    assert result.dtype == output
    expected = torch.zeros(3, 4, dtype=torch.float64)
    for i in range(3):
        for j in range(4):
            total = sum(int(x1[i, n]) * int(x2[n, j]) for n in range(6))
            total += int(bias[j]) if bias_dtype == torch.int32 else 0
            if output != torch.int32:
                total *= float(scale[j]) * (1.0 if rows is None else float(rows[i]))
                total += float(bias[j]) if bias_dtype == torch.float32 else 0
            expected[i, j] = total
    if output == torch.int32:
        assert result.tolist() == expected.tolist()
    elif output == torch.int8:
        assert (result.double() - expected.clamp(-128, 127)).abs().max() <= 0.5 + 1e-3
    else:
        assert_near(result, expected)


def test_int8_output_takes_an_offset():
    ones = torch.ones(1, 2, dtype=torch.int8)
    result = npu_quant_matmul.checked(
        ones, ones.t(), torch.tensor([2.0]), offset=torch.tensor([-3.0])
    )
    assert result.tolist() == [[1]]


def test_refusals():
    x = torch.zeros(2, 4)
    with refused("npu_dynamic_quant: input is float32; documented: float16, bfloat16"):
        npu_dynamic_quant.checked(x)
    with refused("group_index is given without smooth_scales"):
        npu_dynamic_quant.checked(x.half(), group_index=torch.tensor([2], dtype=torch.int32))
    with refused(r"group_index is \[1\]; it must rise and end with the number of rows, 2"):
        npu_dynamic_quant.checked(
            x.half(), smooth_scales=x[:1].half(), group_index=torch.tensor([1], dtype=torch.int32)
        )
    with refused("npu_quantize: scales has 3 elements; it must have 1 or 4"):
        npu_quantize.checked(x, torch.ones(3), None, torch.qint8)
    int8 = x.to(torch.int8)
    with refused("npu_quant_matmul: x1 has 4 columns, x2 2 rows"):
        npu_quant_matmul.checked(int8, int8, torch.ones(4))
    with refused("scale is bfloat16; documented: float32, int64"):
        npu_quant_matmul.checked(int8, int8.t(), torch.ones(2).bfloat16())
    with refused("bias is float32; documented: int32"):
        npu_quant_matmul.checked(int8, int8.t(), torch.ones(2), bias=torch.ones(2))
    with refused("output_dtype is torch.float64"):
        npu_quant_matmul.checked(int8, int8.t(), torch.ones(2), output_dtype=torch.float64)


def test_missing_modes_fail_by_name():
    x = torch.zeros(2, 4)
    with pytest.raises(NotImplementedError, match="npu_dynamic_quant with quant_mode pertensor"):
        npu_dynamic_quant.kernel(x, quant_mode="pertensor")
    with pytest.raises(NotImplementedError, match="npu_quant_matmul with y_scale"):
        npu_quant_matmul.kernel(x, x, x, y_scale=x)
    with pytest.raises(NotImplementedError, match="npu_dynamic_quant with dst_type"):
        npu_dynamic_quant.kernel(x, dst_type=torch.float8_e4m3fn)
    with pytest.raises(NotImplementedError, match=r"npu_quantize with dtype torch\.quint4x2"):
        npu_quantize.kernel(x, torch.ones(1), None, torch.quint4x2)
    with pytest.raises(NotImplementedError, match=r"npu_quant_matmul with torch\.int64"):
        npu_quant_matmul.kernel(x.to(torch.int8), x.to(torch.int8), torch.ones(1).long())


EPSILON = 1e-3


def normalised(x1, x2, gamma, beta=None):
    """The rounded sum, and rms_norm of it * gamma + beta, in float64 loops."""
    total = (x1 + x2).double().tolist()
    rows = []
    for row in total:
        root = math.sqrt(sum(value * value for value in row) / len(row) + EPSILON)
        shifts = [0.0] * len(row) if beta is None else beta.double().tolist()
        weights = gamma.double().tolist()
        rows.append([v / root * w + b for v, w, b in zip(row, weights, shifts, strict=True)])
    return total, rows


def assert_quantised(got, exact):
    """Each integer is the nearest one to its number, up to float32's rounding at a half."""
    for integers, numbers in zip(got.tolist(), exact, strict=True):
        for integer, number in zip(integers, numbers, strict=True):
            assert abs(integer - min(max(number, -128), 127)) <= 0.5 + 1e-3


@few
@given(seeds, half_dtypes, st.booleans(), st.booleans(), st.booleans())
def test_add_rms_norm_quant(seed, dtype, div_mode, with_beta, twice):
    x1, x2 = random_tensor(seed, (3, 6), dtype), random_tensor(seed + 1, (3, 6), dtype)
    gamma = random_tensor(seed + 2, (6,), dtype)
    beta = random_tensor(seed + 3, (6,), dtype) if with_beta else None
    wide = dtype == torch.bfloat16
    scales = (random_tensor(seed + 4, (6,)) / 8 + 0.5).to(dtype if wide else torch.float32)
    zeros = random_integers(seed, -9, 9, (6,)).to(dtype if wide else torch.int32)
    second = {"scales2": scales * 2, "zero_points2": zeros} if twice else {}
    y1, y2, total = npu_add_rms_norm_quant.checked(
        x1, x2, gamma, scales, zeros, beta, epsilon=EPSILON, div_mode=div_mode, **second
    )
    sums, rows = normalised(x1, x2, gamma, beta)
    assert total.dtype == dtype
    assert total.double().tolist() == sums
    factors, shifts = scales.double().tolist(), zeros.double().tolist()
    for got, times in ((y1, 1), (y2, 2)) if twice else ((y1, 1),):
        assert got.dtype == torch.int8
        exact = [
            [
                (v / (f * times) if div_mode else v * f * times) + z
                for v, f, z in zip(row, factors, shifts, strict=True)
            ]
            for row in rows
        ]
        assert_quantised(got, exact)
    assert twice or (y2.shape == x1.shape and not y2.any())


@few
@given(seeds, half_dtypes, st.sampled_from([None, (True, False), (False, True), (True, True)]))
def test_add_rms_norm_dynamic_quant(seed, dtype, mask):
    x1, x2 = random_tensor(seed, (3, 6), dtype), random_tensor(seed + 1, (3, 6), dtype)
    gamma, beta = random_tensor(seed + 2, (6,), dtype), random_tensor(seed + 3, (6,), dtype)
    wanted = mask or (True, seed % 2 == 0)
    smooth = [random_tensor(seed + 4 + at, (6,), dtype) if wanted[at] else None for at in (0, 1)]
    results = npu_add_rms_norm_dynamic_quant.checked(
        x1, x2, gamma, smooth_scale1=smooth[0], smooth_scale2=smooth[1], beta=beta,
        epsilon=EPSILON, output_mask=None if mask is None else list(mask),
    )  # fmt: skip
    sums, rows = normalised(x1, x2, gamma, beta)
    assert results[2].double().tolist() == sums
    for at in (0, 1):
        quantised, scales = results[at], results[3 + at]
        if not wanted[at]:
            assert quantised.shape == ((0,) if mask and at else (3, 6))
            assert scales.shape == (3,)
            assert not quantised.any()
            assert not scales.any()
            continue
        factors = [1.0] * 6 if smooth[at] is None else smooth[at].double().tolist()
        for row, values in enumerate(rows):
            scaled = [v * f for v, f in zip(values, factors, strict=True)]
            scale = max(map(abs, scaled)) / 127
            assert float(scales[row]) == pytest.approx(scale, rel=1e-4)
            assert_quantised(quantised[row : row + 1], [[v / scale for v in scaled]])


def quantised_by_loops(rows, largest_exponent, limit):
    """Dequantised values and scales of groups of 32, by the formula of the documentation."""
    values, scales = [], []
    for row in rows:
        for start in range(0, len(row), 32):
            group = row[start : start + 32]
            top = max(map(abs, group))
            exponent = math.floor(math.log2(top)) - largest_exponent if top else -127
            exponent = max(exponent, -127)
            scales.append(exponent + 127)
            values += [min(max(v / 2.0**exponent, -limit), limit) for v in group]
    return values, scales


@few
@given(seeds, half_dtypes, st.sampled_from([32, 64, 80]), st.sampled_from([torch.float8_e4m3fn,
       torch.float8_e5m2]), st.sampled_from(["plain", "norm", "sum"]))  # fmt: skip
def test_mx_quantisation(seed, dtype, columns, dst_type, how):
    x1 = random_tensor(seed, (3, columns), dtype)
    x2 = random_tensor(seed + 1, (3, columns), dtype) if how == "sum" else torch.zeros_like(x1)
    gamma = random_tensor(seed + 2, (columns,), dtype)
    sums, rows = normalised(x1, x2, gamma)
    if how == "plain":
        got, scales = npu_dynamic_mx_quant.kernel(x1, dst_type=dst_type)
        rows = x1.double().tolist()
    elif how == "norm":
        got, scales, _ = npu_rms_norm_dynamic_mx_quant.kernel(
            x1, gamma, epsilon=EPSILON, dst_type=dst_type
        )
    else:
        got, total, scales, _ = npu_add_rms_norm_dynamic_mx_quant.kernel(
            x1, x2, gamma, epsilon=EPSILON, dst_type=dst_type
        )
        assert total.double().tolist() == sums
    e4m3 = dst_type == torch.float8_e4m3fn
    values, exponents = quantised_by_loops(rows, 8 if e4m3 else 15, 448.0 if e4m3 else 57344.0)
    groups = -(-columns // 32)
    assert got.dtype == dst_type
    assert scales.shape == (3, (groups + 1) // 2, 2)
    flat = scales.flatten(1)
    assert flat[:, :groups].flatten().tolist() == exponents
    assert not flat[:, groups:].any()
    step = 2.0 ** -(3 if e4m3 else 2)  # of the last bit, relative to the leading one
    for found, exact in zip(got.double().flatten().tolist(), values, strict=True):
        assert abs(found - exact) <= max(abs(exact) * step, 2.0**-9) * (0.5 + 1e-3)


def test_a_group_that_holds_no_number_is_zeros():
    x = torch.ones(1, 64).half()
    x[0, 3], x[0, 40] = math.inf, math.nan
    got, scales = npu_dynamic_mx_quant.kernel(x, dst_type=torch.float8_e4m3fn)
    assert not got.float().any()
    assert scales.tolist() == [[[255, 255]]]


ROW = torch.ones(2, 32).half()
WEIGHT = torch.ones(32).half()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: npu_dynamic_mx_quant.checked(ROW), "Ascend 950 only"),
        (lambda: npu_rms_norm_dynamic_mx_quant.checked(ROW, WEIGHT), "Ascend 950 only"),
        (lambda: npu_add_rms_norm_dynamic_mx_quant.checked(ROW, ROW, WEIGHT), "Ascend 950 only"),
        (
            lambda: npu_add_rms_norm_quant.checked(ROW, ROW, WEIGHT, WEIGHT, None),
            "scales1 is float16",
        ),
        (
            lambda: npu_add_rms_norm_quant.checked(
                ROW, ROW, WEIGHT, WEIGHT.float(), None, zero_points2=WEIGHT.int()
            ),
            "without scales2",
        ),
        (
            lambda: npu_add_rms_norm_dynamic_quant.checked(
                ROW, ROW, WEIGHT, output_mask=[False, False]
            ),
            "asks for no result",
        ),
        (
            lambda: npu_add_rms_norm_dynamic_quant.checked(
                ROW, ROW, WEIGHT, smooth_scale2=WEIGHT, output_mask=[True, False]
            ),
            r"output_mask\[1\] must be True",
        ),
        (lambda: npu_add_rms_norm_dynamic_quant.checked(ROW, ROW[:1], WEIGHT), "x2 has shape"),
    ],
)
def test_refused(call, message):
    with refused(message):
        call()
