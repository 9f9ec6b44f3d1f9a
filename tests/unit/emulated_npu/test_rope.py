# SPDX-License-Identifier: Apache-2.0
"""Rotary embeddings against rotations of single pairs in float64."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from emulated_npu.operators.rope import (
    _npu_rotary_embedding,
    npu_apply_rotary_pos_emb,
    npu_interleave_rope,
    npu_mrope,
    npu_rotary_mul,
)
from tests.support.operators.operator_testing import (
    assert_near,
    few,
    float_dtypes,
    random_integers,
    random_tensor,
    refused,
    seeds,
)


def angles(positions: int, pairs: int) -> torch.Tensor:
    """Angles of (position, pair), float64."""
    return torch.tensor(
        [
            [position / 10 ** (pair / pairs) for pair in range(pairs)]
            for position in range(positions)
        ],
        dtype=torch.float64,
    )


def rotated(head: list[float], turns: list[float], halves: bool, halves_out: bool | None = None):
    """One head with pair i turned by turns[i]; pairs are halves apart or neighbours."""
    size = 2 * len(turns)
    result = list(head)
    for pair, turn in enumerate(turns):
        places = (pair, pair + size // 2) if halves else (2 * pair, 2 * pair + 1)
        targets = places
        if halves_out:
            targets = (pair, pair + size // 2)
        a, b = (head[place] for place in places)
        result[targets[0]] = a * math.cos(turn) - b * math.sin(turn)
        result[targets[1]] = a * math.sin(turn) + b * math.cos(turn)
    return result


def doubled(table: torch.Tensor, halves: bool) -> torch.Tensor:
    """Values of pairs -> values of elements."""
    return torch.cat((table, table), -1) if halves else table.repeat_interleave(2, -1)


@few
@given(seeds, float_dtypes, st.integers(1, 4), st.integers(1, 3), st.integers(1, 8), st.booleans())
def test_rotary_mul(seed, dtype, length, heads, pairs, halves):
    x = random_tensor(seed, (2, length, heads, 2 * pairs), dtype)
    table = angles(length, pairs)
    cos, sin = (
        doubled(values, halves).to(dtype).view(1, length, 1, 2 * pairs)
        for values in (table.cos(), table.sin())
    )
    result = npu_rotary_mul.checked(x, cos, sin, "half" if halves else "interleave")
    expected = [
        [
            [rotated(head, table[place].tolist(), halves) for head in token]
            for place, token in enumerate(sequence)
        ]
        for sequence in x.double().tolist()
    ]
    assert_near(result, expected)


def test_rotary_mul_by_a_matrix_equals_the_rotation():
    x = random_tensor(1, (3, 2, 8))
    cos, sin = random_tensor(2, (3, 1, 8)), random_tensor(3, (3, 1, 8))
    matrix = torch.zeros(8, 8)
    for pair in range(4):
        matrix[pair + 4, pair], matrix[pair, pair + 4] = -1, 1
    assert_near(
        npu_rotary_mul.checked(x, cos, sin, rotate=matrix),
        npu_rotary_mul.checked(x, cos, sin).double(),
    )


@few
@given(seeds, st.sampled_from([torch.float16, torch.bfloat16]), st.integers(1, 3), st.booleans())
def test_interleave_rope(seed, dtype, length, shared):
    rows = 1 if shared else length
    x = random_tensor(seed, (2, 3, length, 64), dtype)
    table = angles(rows, 32)
    cos, sin = (
        doubled(values, True).to(dtype).expand(2, 1, rows, 64).contiguous()
        for values in (table.cos(), table.sin())
    )
    expected = [
        [
            [
                rotated(row, table[0 if shared else place].tolist(), False, halves_out=True)
                for place, row in enumerate(head)
            ]
            for head in sequence
        ]
        for sequence in x.double().tolist()
    ]
    assert_near(npu_interleave_rope.checked(x, cos, sin), expected)


@few
@given(seeds, float_dtypes, st.integers(1, 3), st.booleans())
def test_apply_rotary_pos_emb_works_in_place(seed, dtype, length, flat):
    query = random_tensor(seed, (2, length, 3, 64), dtype)
    key = random_tensor(seed + 1, (2, length, 1, 64), dtype)
    table = angles(length, 32)
    cos, sin = (
        doubled(values, True).to(dtype).view(1, length, 1, 64).expand(2, length, 1, 64)
        for values in (table.cos(), table.sin())
    )
    expected = []
    for tensor in (query, key):
        expected.append(
            [
                [
                    [rotated(head, table[place].tolist(), True) for head in token]
                    for place, token in enumerate(sequence)
                ]
                for sequence in tensor.double().tolist()
            ]
        )
    if flat:
        query, key, cos, sin = (tensor.flatten(0, 1) for tensor in (query, key, cos, sin))
    layout = "TND" if flat else "BSND"
    results = npu_apply_rotary_pos_emb.checked(query, key, cos, sin, layout=layout)
    assert results[0] is query
    assert results[1] is key
    assert_near(query, expected[0])
    assert_near(key, expected[1])


@few
@given(seeds, float_dtypes, st.integers(1, 5), st.sampled_from([16, 32]), st.booleans())
def test_rotary_embedding(seed, dtype, tokens, head_size, halves):
    positions = random_integers(seed, 0, 20, (tokens,), torch.int64)
    query = random_tensor(seed + 1, (tokens, 2 * head_size), dtype)
    key = random_tensor(seed + 2, (tokens, head_size), dtype)
    table = angles(20, head_size // 2)
    cache = torch.cat((table.cos(), table.sin()), -1).to(dtype)
    expected = [
        [
            [rotated(head, table[place].tolist(), halves) for head in token]
            for place, token in zip(
                positions.tolist(),
                tensor.double().view(tokens, -1, head_size).tolist(),
                strict=True,
            )
        ]
        for tensor in (query, key)
    ]
    assert _npu_rotary_embedding.checked(positions, query, key, head_size, cache, halves) is None
    assert_near(query, expected[0])
    assert_near(key, expected[1])


@few
@given(seeds, st.integers(1, 4), st.booleans(), st.booleans())
def test_mrope(seed, tokens, halves, sections_given):
    head_size, rotary, sections = 64, 32, [4, 6, 6]
    shape = (3, tokens) if sections_given else (tokens,)
    positions = random_integers(seed, 0, 20, shape)
    query = random_tensor(seed + 1, (tokens, 2 * head_size))
    key = random_tensor(seed + 2, (tokens, head_size))
    table = angles(20, rotary // 2)
    cache = torch.cat((table.cos(), table.sin()), -1).float()
    results = npu_mrope.checked(
        positions,
        query,
        key,
        cache,
        head_size,
        mrope_section=sections if sections_given else None,
        rotary_mode="half" if halves else "interleaved",
    )
    section_of_pair = [0] * 4 + [1] * 6 + [2] * 6
    for tensor, result in zip((query, key), results, strict=True):
        expected = []
        for token, heads in enumerate(tensor.double().view(tokens, -1, head_size).tolist()):
            rows = [
                int(positions[section, token]) if sections_given else int(positions[token])
                for section in section_of_pair
            ]
            turns = [float(table[row, pair]) for pair, row in enumerate(rows)]
            expected.append([rotated(head, turns, halves) for head in heads])
        assert_near(result, expected)


def test_refusals():
    x, half = torch.zeros(1, 2, 1, 64), torch.zeros(1, 1, 1, 64)
    with refused("npu_rotary_mul: rotary_mode is 'quarter'"):
        npu_rotary_mul.checked(x, half, half, "quarter")
    with refused("input's last dimension is 896"):
        npu_rotary_mul.checked(torch.zeros(1, 1, 896), half[0], half[0])
    with refused(r"r2 has shape \(3, 1, 1, 64\)"):
        npu_rotary_mul.checked(x, half, torch.zeros(3, 1, 1, 64))
    with refused("npu_interleave_rope: x is float32; documented: float16, bfloat16"):
        npu_interleave_rope.checked(x, half, half)
    with refused(r"x has shape \(1, 1, 1, 32\)"):
        small = torch.zeros(1, 1, 1, 32).half()
        npu_interleave_rope.checked(small, small, small)
    with refused("query's last dimension is 32; it must be 64 or 128"):
        narrow = torch.zeros(1, 1, 1, 32)
        npu_apply_rotary_pos_emb.checked(narrow, narrow, narrow, narrow)
    with refused("layout is 'BNSD'"):
        npu_apply_rotary_pos_emb.checked(x, x, half, half, layout="BNSD")
    positions, cache = torch.tensor([9]), torch.zeros(8, 64)
    query = torch.zeros(1, 64)
    with refused("the least of positions is 9; it must be from 0 to 7"):
        _npu_rotary_embedding.checked(positions, query, query, 64, cache, True)
    with refused(r"cos_sin_cache has shape \(8, 64\); it must be \(any, 32\)"):
        _npu_rotary_embedding.checked(positions, query, query, 32, cache, True)
    with refused("head_size is 40; it must be a multiple of 16"):
        npu_mrope.checked(torch.tensor([1]), query, query, cache[:, :32], 40)
    with refused(r"mrope_section is \[1, 2, 3\]"):
        npu_mrope.checked(
            torch.zeros(3, 1, dtype=torch.int32), query, query, cache, 64, mrope_section=[1, 2, 3]
        )


def test_missing_mode_fails_by_name():
    with pytest.raises(NotImplementedError, match=r"torch_npu.npu_mrope with cache_mode"):
        npu_mrope.kernel(
            torch.tensor([0]),
            torch.zeros(1, 64),
            torch.zeros(1, 64),
            torch.zeros(8, 64),
            64,
            cache_mode="interleave",
        )
