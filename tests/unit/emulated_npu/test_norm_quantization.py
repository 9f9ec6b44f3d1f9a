# SPDX-License-Identifier: Apache-2.0
"""Norms fused with quantisation against scalar float64 references."""

from __future__ import annotations

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
from tests.support.operators.operator_testing import (
    FLOAT_DTYPES,
    few,
    random_integers,
    random_tensor,
    refused,
    seeds,
)

half_dtypes = st.sampled_from(FLOAT_DTYPES[:2])
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
        (
            lambda: npu_add_rms_norm_dynamic_quant.checked(ROW, ROW[:1], WEIGHT),
            "x2 has shape",
        ),
    ],
)
def test_refused(call, message):
    with refused(message):
        call()
