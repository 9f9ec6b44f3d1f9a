# SPDX-License-Identifier: Apache-2.0
"""RMS norms against a scalar float64 reference."""

from __future__ import annotations

import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from emulated_npu.custom_operators.norm import npu_add_rms_norm_bias, npu_rms_norm_cast
from emulated_npu.custom_operators.norm import npu_gemma_rms_norm as custom_gemma_rms_norm
from emulated_npu.operators.norm import (
    npu_add_rms_norm,
    npu_gemma_rms_norm,
    npu_rms_norm,
)
from emulated_npu.operators.requirements import HALF_FLOATS
from tests.support.operators.operator_testing import (
    assert_near,
    few,
    float_dtypes,
    random_tensor,
    refused,
    seeds,
)

EPSILON = 1e-3


def reference_rms_norm(rows: list[list[float]], gamma: list[float], offset: float = 0.0):
    """Rows of x * (offset + gamma) / rms, and 1 / rms of each."""
    results, roots = [], []
    for row in rows:
        total = 0.0
        for value in row:
            total += value * value
        root = 1.0 / math.sqrt(total / len(row) + EPSILON)
        roots.append(root)
        results.append([value * root * (offset + g) for value, g in zip(row, gamma, strict=True)])
    return results, roots


def rows_of(tensor: torch.Tensor, columns: int) -> list[list[float]]:
    return tensor.double().reshape(-1, columns).tolist()


@few
@given(seeds, float_dtypes, st.integers(1, 5), st.integers(1, 40), st.booleans())
def test_rms_norm(seed, dtype, num_rows, columns, wide_gamma):
    x = random_tensor(seed, (2, num_rows, columns), dtype)
    gamma = random_tensor(seed + 1, (columns,), torch.float32 if wide_gamma else dtype)
    y, root = npu_rms_norm.checked(x, gamma, EPSILON)
    expected, roots = reference_rms_norm(rows_of(x, columns), gamma.double().tolist())
    assert y.dtype == dtype
    assert root.dtype == torch.float32
    assert root.shape == (2, num_rows, 1)
    assert_near(y, expected)
    assert_near(root, roots)


@few
@given(seeds, float_dtypes, st.integers(1, 4), st.integers(1, 6))
def test_rms_norm_over_two_dimensions(seed, dtype, num_rows, columns):
    x = random_tensor(seed, (num_rows, 3, columns), dtype)
    gamma = random_tensor(seed + 1, (3, columns), dtype)
    y, root = npu_rms_norm.checked(x, gamma, EPSILON)
    flat_gamma = gamma.double().flatten().tolist()
    expected, roots = reference_rms_norm(rows_of(x, 3 * columns), flat_gamma)
    assert root.shape == (num_rows, 1, 1)
    assert_near(y, expected)
    assert_near(root, roots)


@few
@given(seeds, float_dtypes, st.integers(1, 5), st.integers(1, 40))
def test_add_rms_norm(seed, dtype, num_rows, columns):
    x1, x2 = (random_tensor(seed + i, (num_rows, columns), dtype) for i in range(2))
    gamma = random_tensor(seed + 2, (columns,), dtype)
    y, root, total = npu_add_rms_norm.checked(x1, x2, gamma, EPSILON)
    assert_near(total, x1.double() + x2.double())
    expected, roots = reference_rms_norm(rows_of(total, columns), gamma.double().tolist())
    assert_near(y, expected)
    assert_near(root, roots)


@few
@given(seeds, float_dtypes, st.integers(1, 5), st.integers(1, 40), st.booleans())
def test_add_rms_norm_bias(seed, dtype, num_rows, columns, with_bias):
    x1, x2 = (random_tensor(seed + i, (num_rows, columns), dtype) for i in range(2))
    gamma, beta = (random_tensor(seed + 2 + i, (columns,), dtype) for i in range(2))
    y, root, total = npu_add_rms_norm_bias.checked(
        x1, x2, gamma, beta if with_bias else None, EPSILON
    )
    assert_near(total, x1.double() + x2.double())
    expected, roots = reference_rms_norm(rows_of(total, columns), gamma.double().tolist())
    bias = beta.double() if with_bias else torch.zeros(columns, dtype=torch.float64)
    assert_near(y, torch.tensor(expected, dtype=torch.float64) + bias)
    assert_near(root, roots)


@few
@given(seeds, st.sampled_from(HALF_FLOATS), st.integers(1, 5), st.integers(1, 40))
def test_rms_norm_cast(seed, dtype, num_rows, columns):
    """The float32 result is the rounded one, since experts are chosen by it."""
    x = random_tensor(seed, (2, num_rows, columns), dtype)
    gamma = random_tensor(seed + 1, (columns,), dtype)
    y, wide = npu_rms_norm_cast.checked(x, gamma, EPSILON)
    expected, _ = reference_rms_norm(rows_of(x, columns), gamma.double().tolist())
    assert (y.dtype, wide.dtype) == (dtype, torch.float32)
    assert_near(y, expected)
    assert torch.equal(wide, y.float())


@few
@given(seeds, float_dtypes, st.integers(1, 5), st.integers(1, 40))
def test_gemma_rms_norm(seed, dtype, num_rows, columns):
    x = random_tensor(seed, (num_rows, columns), dtype)
    gamma = random_tensor(seed + 1, (columns,), dtype)
    expected, roots = reference_rms_norm(rows_of(x, columns), gamma.double().tolist(), offset=1.0)
    for gemma_operator in (npu_gemma_rms_norm, custom_gemma_rms_norm):
        y, root = gemma_operator.checked(x, gamma, EPSILON)
        assert_near(y, expected)
        assert_near(root, roots)


def test_refusals():
    x, gamma = torch.zeros(2, 8), torch.zeros(8)
    with refused("npu_rms_norm: gamma is float64"):
        npu_rms_norm.checked(x, gamma.double())
    with refused("gamma is bfloat16"):
        npu_rms_norm.checked(x, gamma.bfloat16())
    with refused(r"gamma has shape \(4,\)"):
        npu_rms_norm.checked(x, torch.zeros(4))
    with refused("input has 1 dimensions"):
        npu_rms_norm.checked(gamma, gamma)
    with refused("npu_add_rms_norm: x1 is float32, x2 is float32, gamma is float16"):
        npu_add_rms_norm.checked(x, x, gamma.half())
    with refused(r"x2 has shape \(1, 8\)"):
        npu_add_rms_norm.checked(x, x[:1], gamma)
    with refused("x1 is empty"):
        npu_add_rms_norm.checked(x[:0], x[:0], gamma)
    with refused("_C_ascend.npu_add_rms_norm_bias: beta has shape"):
        npu_add_rms_norm_bias.checked(x, x, gamma, gamma[:4])
    with refused("npu_gemma_rms_norm: x is float32, gamma is float16"):
        npu_gemma_rms_norm.checked(x, gamma.half())
