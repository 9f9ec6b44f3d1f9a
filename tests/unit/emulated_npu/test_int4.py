# SPDX-License-Identifier: Apache-2.0
"""int4 in int32 against scalar references, and what reads it."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from emulated_npu.operators import int4
from emulated_npu.operators.int4 import npu_convert_weight_to_int4pack
from emulated_npu.operators.quantization import npu_dynamic_quant, npu_quant_matmul, npu_quantize
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

half_dtypes = st.sampled_from(FLOAT_DTYPES[:2])


def int4_values(seed: int, *shape: int) -> torch.Tensor:
    return random_integers(seed, -8, 8, shape)


def packed_by_hand(values: list[int]) -> int:
    """Eight integers in the four bytes of a little-endian int32, two in a byte, the lower first."""
    halves = [value if value >= 0 else value + 16 for value in values]
    data = bytes(low + 16 * high for low, high in zip(halves[::2], halves[1::2], strict=True))
    return int.from_bytes(data, "little", signed=True)


def unpacked_by_hand(word: int) -> list[int]:
    data = word.to_bytes(4, "little", signed=True)
    halves = [half for byte in data for half in (byte % 16, byte // 16)]
    return [half if half < 8 else half - 16 for half in halves]


@few
@given(seeds, st.integers(1, 4), st.integers(1, 3), st.integers(0, 2))
def test_eight_columns_are_in_each_int32(seed, rows, words, tiles):
    weight = int4_values(seed, rows, 8 * words)
    packed = npu_convert_weight_to_int4pack.checked(weight, inner_k_tiles=tiles)
    assert packed.dtype == torch.int32
    expected = [
        [packed_by_hand(row[8 * word : 8 * word + 8]) for word in range(words)]
        for row in weight.tolist()
    ]
    assert packed.tolist() == expected
    assert int4.unpack(packed).tolist() == weight.tolist()


def test_the_ends_of_the_range():
    packed = npu_convert_weight_to_int4pack.checked(
        torch.tensor([[-8] * 8, [7] * 8, [-1] * 8, [0] * 7 + [-8]], dtype=torch.int32)
    )
    signed = [word - 2**32 * (word >= 2**31) for word in (0x88888888, 0x77777777, 0xFFFFFFFF)]
    assert packed.flatten().tolist() == [*signed, -(2**31)]


REFUSED = {
    "weight is int8": torch.zeros(2, 8, dtype=torch.int8),
    "weight has 3 dimensions": torch.zeros(1, 2, 8, dtype=torch.int32),
    "is not contiguous": torch.zeros(8, 8, dtype=torch.int32).t(),
    "weight is empty": torch.zeros(0, 8, dtype=torch.int32),
    "weight's last size is 12; it must be a multiple of 8": torch.zeros(2, 12, dtype=torch.int32),
    "weight has numbers from 0 to 8": 8 * torch.eye(8)[:1].int(),
    "weight has numbers from -9 to 0": -9 * torch.eye(8)[:1].int(),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_is_not_documented_is_refused(message):
    with refused(message):
        npu_convert_weight_to_int4pack.checked(REFUSED[message])


def packed(values: torch.Tensor, transposed: bool) -> torch.Tensor:
    """`values` (k, n), as the operator packs them: along n, or along k and transposed."""
    if transposed:
        return npu_convert_weight_to_int4pack.checked(values.t().contiguous()).t()
    return npu_convert_weight_to_int4pack.checked(values)


ROWS, INNER, COLUMNS, GROUP = 3, 64, 8, 32


@few
@given(seeds, half_dtypes, st.booleans(), st.booleans(), st.booleans())
def test_weights_of_int4(seed, dtype, transposed, grouped, with_offset):
    x = random_tensor(seed, (ROWS, INNER), dtype, spread=0.5)
    weight = int4_values(seed + 1, INNER, COLUMNS)
    shape = (INNER // GROUP, COLUMNS) if grouped else (1, COLUMNS)
    scale = random_tensor(seed + 2, shape, dtype, spread=0.2)
    offset = random_tensor(seed + 3, shape, dtype) if with_offset else None
    actual = npu_weight_quant_batchmatmul.checked(
        x, packed(weight, transposed), scale, offset, antiquant_group_size=GROUP if grouped else 0
    )
    assert actual.dtype == dtype
    expected = [[0.0] * COLUMNS for _ in range(ROWS)]
    for row in range(ROWS):
        for column in range(COLUMNS):
            for k in range(INNER):
                group = k // GROUP if grouped else 0
                added = float(offset[group, column]) if with_offset else 0.0
                value = (int(weight[k, column]) + added) * float(scale[group, column])
                expected[row][column] += float(x[row, k]) * value
    assert_near(actual, expected)


@few
@given(seeds, half_dtypes, st.integers(1, 4))
def test_dynamic_quant_to_int4(seed, dtype, rows):
    x = random_tensor(seed, (rows, 16), dtype)
    words, scales = npu_dynamic_quant.checked(x, dst_type=torch.quint4x2)
    assert (words.dtype, words.shape, scales.shape) == (torch.int32, (rows, 2), (rows,))
    for row, values in enumerate(x.double().tolist()):
        scale = max(abs(value) for value in values) / 7
        assert float(scales[row]) == pytest.approx(scale, rel=1e-5)
        quantised = [part for word in words[row].tolist() for part in unpacked_by_hand(word)]
        for value, got in zip(values, quantised, strict=True):
            assert abs(value - got * scale) <= (0.5 + 1e-3) * scale


@few
@given(seeds, st.sampled_from(FLOAT_DTYPES), st.booleans(), st.sampled_from([(), (3,)]))
def test_quantize_to_int4(seed, dtype, with_zero_points, batch):
    x = random_tensor(seed, (*batch, 2, 8), dtype, spread=9)
    scales = random_tensor(seed + 1, (8,), dtype)
    zeros = random_tensor(seed + 2, (8,), dtype, spread=3) if with_zero_points else None
    words = npu_quantize.checked(x, scales, zeros, torch.quint4x2, -1, False)
    assert (words.dtype, words.shape) == (torch.int32, (*batch, 2, 1))
    for row, word in zip(x.reshape(-1, 8).double().tolist(), words.flatten().tolist(), strict=True):
        for column, got in enumerate(unpacked_by_hand(word)):
            value = row[column] * float(scales[column])
            value += 0.0 if zeros is None else float(zeros[column])
            assert abs(max(-8.0, min(value, 7.0)) - got) <= 0.5 + 1e-3


@few
@given(seeds, half_dtypes, st.booleans(), st.booleans(), st.booleans())
def test_products_of_int4(seed, output, transposed, row_scaled, with_bias):
    output = output if row_scaled else torch.float16
    x1, x2 = int4_values(seed, ROWS, INNER), int4_values(seed + 1, INNER, COLUMNS)
    scale = random_tensor(seed + 2, (COLUMNS,)) / 100
    row_scale = random_tensor(seed + 3, (ROWS,)) if row_scaled else None
    bias = random_integers(seed + 4, -99, 99, (COLUMNS,)) if with_bias and not row_scaled else None
    actual = npu_quant_matmul.checked(
        int4.pack(x1),
        packed(x2, transposed),
        scale,
        pertoken_scale=row_scale,
        bias=bias,
        output_dtype=output,
    )
    assert actual.dtype == output
    expected = []
    for row in range(ROWS):
        for column in range(COLUMNS):
            total = sum(int(x1[row, k]) * int(x2[k, column]) for k in range(INNER))
            total += 0 if bias is None else int(bias[column])
            factor = 1.0 if row_scale is None else float(row_scale[row])
            expected.append(total * float(scale[column]) * factor)
    assert_near(actual, expected)


def product(**changes):
    given = {
        "x1": torch.zeros(2, 2, dtype=torch.int32),
        "x2": torch.zeros(16, 1, dtype=torch.int32),
        "scale": torch.ones(8),
        "output_dtype": torch.float16,
    }
    return npu_quant_matmul.checked(**{**given, **changes})


def test_refusals_of_readers():
    word = torch.zeros(16, 2, dtype=torch.int32)
    assert product().shape == (2, 8)
    with refused("x1 is int32, x2 is int8; they must have one dtype"):
        product(x2=torch.zeros(16, 8, dtype=torch.int8))
    with refused("x1 has 16 columns, x2 8 rows"):
        product(x2=word[:8, :1].contiguous())
    with refused(r"x1 \(shape .*is not contiguous"):
        product(x1=torch.zeros(2, 2, dtype=torch.int32).t())
    with refused(r"x2 \(shape \(16, 1\), strides \(2, 1\)\) holds int4"):
        product(x2=word[:, :1])
    with refused("output_dtype is torch.int32; for int4"):
        product(output_dtype=torch.int32)
    with refused("output_dtype is bfloat16 without pertoken_scale"):
        product(output_dtype=torch.bfloat16)
    with refused("scale is bfloat16; documented: float32, int64"):
        product(scale=torch.ones(8).bfloat16())
    with refused("bias is given with pertoken_scale"):
        product(bias=torch.zeros(8), pertoken_scale=torch.ones(2))
    with refused("offset is given"):
        product(offset=torch.ones(8))
    with refused("input's last size is 12; it must be a multiple of 8"):
        npu_dynamic_quant.checked(torch.ones(2, 12).half(), dst_type=torch.quint4x2)
    with refused("input's last size is 12; it must be a multiple of 8"):
        npu_quantize.checked(torch.ones(2, 12), torch.ones(1), None, torch.quint4x2, -1, False)
    half = torch.ones(2, 16).half()
    with refused(r"weight \(shape \(16, 1\), strides \(2, 1\)\) holds int4"):
        npu_weight_quant_batchmatmul.checked(half, word[:, :1], half[0, :1])
    with refused(r"x has shape \(2, 16\); it must be \(any, 8\)"):
        npu_weight_quant_batchmatmul.checked(half, word[:8].contiguous(), half[0, :1])
