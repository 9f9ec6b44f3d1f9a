# SPDX-License-Identifier: Apache-2.0
"""Norms, rotary embeddings, activations and sampling, against scalars in float64."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from emulated_npu.custom_operators.norm import npu_add_rms_norm_bias, npu_rms_norm_cast
from emulated_npu.custom_operators.norm import npu_gemma_rms_norm as custom_gemma_rms_norm
from emulated_npu.operators import format as formats
from emulated_npu.operators.activation import npu_clipped_swiglu, npu_fast_gelu, npu_swiglu
from emulated_npu.operators.norm import npu_add_rms_norm, npu_gemma_rms_norm, npu_rms_norm
from emulated_npu.operators.requirements import HALF_FLOATS
from emulated_npu.operators.rope import (
    _npu_rotary_embedding,
    npu_apply_rotary_pos_emb,
    npu_interleave_rope,
    npu_mrope,
    npu_rotary_mul,
)
from emulated_npu.operators.sampling import npu_top_k_top_p
from tests.support.operators.operator_testing import (
    assert_near,
    few,
    float_dtypes,
    random_integers,
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


def test_refusals_of_norm():
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


def test_refusals_of_rope():
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


def test_a_missing_mode_of_rope():
    with pytest.raises(NotImplementedError, match=r"torch_npu.npu_mrope with cache_mode"):
        npu_mrope.kernel(
            torch.tensor([0]),
            torch.zeros(1, 64),
            torch.zeros(1, 64),
            torch.zeros(8, 64),
            64,
            cache_mode="interleave",
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


def reference_kept(row: list[float], p: float | None, k: int | None) -> set[int]:
    """Indices that stay: first the k largest (with ties), then the nucleus of mass p."""
    order = sorted(range(len(row)), key=lambda index: (row[index], index))
    kept = order
    if k is not None:
        threshold = row[order[-k]]
        kept = [index for index in order if row[index] >= threshold]
    if p is None:
        return set(kept)
    largest = max(row)
    weights = [math.exp(row[index] - largest) for index in kept]
    total, mass, nucleus = sum(weights), 0.0, []
    for index, weight in zip(kept, weights, strict=True):
        mass += weight / total
        if mass > 1 - p:
            nucleus.append(index)
    return set(nucleus or kept[-1:])


@few
@given(seeds, st.integers(1, 4), st.integers(1, 30), st.booleans(), st.booleans())
def test_top_k_top_p(seed, batch, vocabulary, with_p, with_k):
    logits = random_tensor(seed, (batch, vocabulary), spread=4)
    p = random_tensor(seed + 1, (batch,), spread=0.5) + 0.5 if with_p else None
    generator = torch.Generator().manual_seed(seed)
    k = None
    if with_k:
        k = torch.randint(1, vocabulary + 1, (batch,), generator=generator, dtype=torch.int32)
    result = npu_top_k_top_p.checked(logits, p, k)
    for row in range(batch):
        kept = reference_kept(
            logits[row].double().tolist(),
            None if p is None else float(p[row]),
            None if k is None else int(k[row]),
        )
        for index in range(vocabulary):
            expected = float(logits[row, index]) if index in kept else -math.inf
            assert float(result[row, index]) == expected


def test_ties_at_the_kth_place_all_stay():
    logits = torch.tensor([[1.0, 3.0, 2.0, 2.0, 0.0]])
    result = npu_top_k_top_p.checked(logits, None, torch.tensor([2], dtype=torch.int32))
    assert result.isfinite().tolist() == [[False, True, True, True, False]]


def test_one_logit_stays_at_p_zero():
    logits = torch.tensor([[1.0, 3.0, 2.0]])
    result = npu_top_k_top_p.checked(logits, torch.zeros(1), None)
    assert result.isfinite().tolist() == [[False, True, False]]


def test_refusals_of_sampling():
    logits, p = torch.zeros(2, 8), torch.ones(2)
    k = torch.ones(2, dtype=torch.int32)
    with refused("npu_top_k_top_p: k is int64; documented: int32"):
        npu_top_k_top_p.checked(logits, p, k.long())
    with refused("the largest of k is 9; it must be from 1 to 8"):
        npu_top_k_top_p.checked(logits, p, k + torch.tensor([0, 8], dtype=torch.int32))
    with refused("logits is float32, p is float16"):
        npu_top_k_top_p.checked(logits, p.half(), k)
    with refused(r"p has shape \(1,\); it must be \(2\)"):
        npu_top_k_top_p.checked(logits, p[:1], k)
    with refused("the least of p is 2.0; it must be from 0 to 1"):
        npu_top_k_top_p.checked(logits, p * 2, k)
