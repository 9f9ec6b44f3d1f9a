# SPDX-License-Identifier: Apache-2.0
"""Activations and memory formats against scalar float64 references."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from emulated_npu.operators import format as formats
from emulated_npu.operators.activation import npu_clipped_swiglu, npu_fast_gelu, npu_swiglu
from tests.support.operators.operator_testing import (
    assert_near,
    few,
    float_dtypes,
    random_tensor,
    refused,
    seeds,
)


@few
@given(seeds, float_dtypes, st.integers(1, 4), st.integers(1, 20))
def test_swiglu(seed, dtype, num_rows, half):
    x = random_tensor(seed, (num_rows, 2 * half), dtype, spread=6)
    expected = []
    for row in x.double().tolist():
        gates, ups = row[:half], row[half:]
        expected.append([g / (1 + math.exp(-g)) * u for g, u in zip(gates, ups, strict=True)])
    assert_near(npu_swiglu.checked(x), expected)
    assert_near(npu_swiglu.checked(x.t().contiguous(), 0).t(), expected)


@few
@given(seeds, float_dtypes, st.integers(1, 4), st.integers(1, 20), st.booleans())
def test_clipped_swiglu(seed, dtype, num_rows, half, interleaved):
    x = random_tensor(seed, (num_rows, 2 * half), dtype, spread=6)
    alpha, limit, bias = 1.3, 2.5, 0.5
    expected = []
    for row in x.double().tolist():
        gates, ups = (row[::2], row[1::2]) if interleaved else (row[:half], row[half:])
        gates = [min(gate, limit) for gate in gates]
        ups = [max(-limit, min(up, limit)) for up in ups]
        expected.append(
            [g / (1 + math.exp(-alpha * g)) * (u + bias) for g, u in zip(gates, ups, strict=True)]
        )
    options = {"alpha": alpha, "limit": limit, "bias": bias, "interleaved": interleaved}
    assert_near(npu_clipped_swiglu.checked(x, **options), expected)
    turned = npu_clipped_swiglu.checked(x.t().contiguous(), dim=0, **options)
    assert_near(turned.t(), expected)


@few
@given(seeds, float_dtypes, st.integers(1, 40))
def test_fast_gelu(seed, dtype, size):
    x = random_tensor(seed, (size,), dtype, spread=6)
    expected = [value / (1 + math.exp(-1.702 * value)) for value in x.double().tolist()]
    assert_near(npu_fast_gelu.checked(x), expected)


def test_activation_refusals():
    with refused("npu_swiglu: input has size 3 along dim -1; it must be even"):
        npu_swiglu.checked(torch.zeros(2, 3))
    with refused("not contiguous"):
        npu_swiglu.checked(torch.zeros(4, 2).t())
    with refused("input is int32"):
        npu_swiglu.checked(torch.zeros(2, 4, dtype=torch.int32))
    with refused("input is empty"):
        npu_swiglu.checked(torch.zeros(0, 4))
    with refused("npu_clipped_swiglu: x has size 3 along dim 0; it must be even"):
        npu_clipped_swiglu.checked(torch.zeros(3, 4), dim=0)
    with refused("x has 1 dimensions"):
        npu_clipped_swiglu.checked(torch.zeros(4))
    with pytest.raises(NotImplementedError, match="group_index"):
        npu_clipped_swiglu.kernel(torch.zeros(2, 4), group_index=torch.tensor([1]))
    with refused("npu_fast_gelu: input is float64"):
        npu_fast_gelu.checked(torch.zeros(4, dtype=torch.float64))


def test_formats_change_nothing():
    x = random_tensor(0, (4, 8))
    nz = formats.Format.FRACTAL_NZ
    assert formats.npu_format_cast.checked(x, nz) is x
    assert formats.npu_format_cast_.checked(x, 29) is x
    assert formats.get_npu_format.kernel(x) == formats.Format.ND == 2
    assert formats.get_storage_size.kernel(x[1:, ::2]) == 32
    empty = formats.empty_with_format.kernel([2, 3], dtype=torch.int8, acl_format=nz)
    assert empty.shape == (2, 3)
    assert empty.dtype == torch.int8
    with refused(r"acl_format is 5; it must be one of .*29 \(FRACTAL_NZ\)"):
        formats.npu_format_cast.checked(x, 5)


def test_prefetch_checks_its_window():
    x = torch.zeros(4, 8)
    formats.npu_prefetch.checked(x, None, 64)
    with refused("offset is 129; it must be from 0 to 128 bytes"):
        formats.npu_prefetch.checked(x, None, 64, 129)
    with refused("max_size is 0"):
        formats.npu_prefetch.checked(x, None, 0)


def test_a_format_is_known_by_its_name():
    with pytest.raises(ValueError, match="5 is not a valid Format"):
        formats.Format(5)
