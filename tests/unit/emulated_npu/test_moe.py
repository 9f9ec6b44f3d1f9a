# SPDX-License-Identifier: Apache-2.0
"""Gating and routing of experts against scalar float64 references."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from emulated_npu.custom_operators.moe import moe_gating_top_k, npu_moe_init_routing_custom
from emulated_npu.operators.moe_gating import npu_moe_gating_top_k, npu_moe_gating_top_k_softmax
from emulated_npu.operators.moe_routing import (
    npu_moe_init_routing_v2,
    npu_moe_token_permute,
    npu_moe_token_unpermute,
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

EPSILON = 1e-20


def reference_scores(logits: list[float], norm_type: int) -> list[float]:
    if norm_type == 1:
        return [1 / (1 + math.exp(-value)) for value in logits]
    weights = [math.exp(value - max(logits)) for value in logits]
    return [weight / sum(weights) for weight in weights]


def reference_choice(
    ranking: list[float], k: int, k_group: int, group_count: int, mode: int
) -> list[int]:
    """The k best experts of the k_group best groups; of equals, the lower index."""
    size = len(ranking) // group_count
    group_scores = []
    for group in range(group_count):
        members = sorted(ranking[group * size : (group + 1) * size], reverse=True)
        group_scores.append(members[0] if mode == 0 else members[0] + members[1])
    best = sorted(range(group_count), key=lambda group: (-group_scores[group], group))[:k_group]
    allowed = [expert for expert in range(len(ranking)) if expert // size in best]
    return sorted(allowed, key=lambda expert: (-ranking[expert], expert))[:k]


@few
@given(
    seeds,
    float_dtypes,
    st.sampled_from([(8, 1, 1), (8, 4, 3), (12, 4, 2), (16, 4, 3), (16, 2, 1)]),
    st.integers(1, 4),
    st.integers(0, 1),
    st.integers(0, 1),
    st.integers(0, 1),
    st.booleans(),
)
def test_gating_top_k(seed, dtype, sizes, k, norm_type, mode, renorm, with_bias):
    experts, group_count, k_group = sizes
    tokens, factor = 3, 1.5
    x = random_tensor(seed, (tokens, experts), dtype)
    bias = random_tensor(seed + 1, (experts,), dtype) if with_bias else None
    weights, chosen, scores = moe_gating_top_k.checked(
        x, k, k_group, group_count, mode, renorm, norm_type, True, factor, EPSILON, bias
    )
    assert weights.dtype == dtype
    assert chosen.dtype == torch.int32
    assert scores.dtype == torch.float32
    for token in range(tokens):
        expected = reference_scores(x[token].double().tolist(), norm_type)
        assert_near(scores[token], expected)
        # Ranked by the operator's own float32 scores: which of two nearly equal experts is chosen
        # is not what this test is about.
        ranking = scores[token]
        if bias is not None:
            ranking = ranking + bias.float()
        choice = reference_choice(ranking.tolist(), k, k_group, group_count, mode)
        assert chosen[token].tolist() == choice
        chosen_scores = [expected[expert] for expert in choice]
        total = sum(chosen_scores) if norm_type == 1 or renorm else 1.0
        assert_near(weights[token], [score / total * factor for score in chosen_scores])


@few
@given(seeds, float_dtypes, st.integers(1, 4), st.integers(0, 1))
def test_torch_npu_gating_top_k_is_the_same_without_renorm(seed, dtype, k, norm_type):
    x, bias = random_tensor(seed, (3, 8), dtype), random_tensor(seed + 1, (8,), dtype)
    results = npu_moe_gating_top_k.checked(x, k, bias=bias, norm_type=norm_type)
    custom = moe_gating_top_k.checked(x, k, 1, 1, 0, 0, norm_type, False, 1.0, EPSILON, bias)
    for result, expected in zip(results, custom, strict=True):
        assert torch.equal(result, expected)


@few
@given(seeds, float_dtypes, st.integers(1, 5), st.integers(1, 4))
def test_gating_top_k_softmax(seed, dtype, tokens, k):
    x = random_tensor(seed, (tokens, 6), dtype)
    weights, chosen, rows = npu_moe_gating_top_k_softmax.checked(x, None, k)
    for token in range(tokens):
        scores = reference_scores(x[token].double().tolist(), 0)
        ranking = x[token].float().softmax(-1).tolist()
        choice = sorted(range(6), key=lambda expert: (-ranking[expert], expert))[:k]
        assert chosen[token].tolist() == choice
        assert_near(weights[token], [scores[expert] for expert in choice])
        assert rows[token].tolist() == [rank * tokens + token for rank in range(k)]


def reference_order(choices: list[int], first: int, end: int) -> list[int]:
    """Positions of the served choices, by expert, in their order within an expert."""
    return [place for expert in range(first, end) for place, c in enumerate(choices) if c == expert]


@few
@given(
    seeds,
    st.integers(1, 6),
    st.integers(1, 3),
    st.sampled_from([(0, 8), (2, 5), (6, 8)]),
    st.integers(0, 1),
    st.integers(0, 2),
    st.booleans(),
)
def test_init_routing(seed, tokens, k, active, row_idx_type, tokens_type, limited):
    first, end = active
    x = random_tensor(seed, (tokens, 4))
    expert_idx = random_integers(seed, 0, 8, (tokens, k))
    limit = tokens * k - 1 if limited and tokens * k > 1 else -1
    results = [
        routing.checked(
            x,
            expert_idx,
            active_num=limit,
            expert_num=8,
            expert_tokens_num_type=tokens_type,
            expert_tokens_num_flag=True,
            quant_mode=-1,
            active_expert_range=[first, end],
            row_idx_type=row_idx_type,
        )
        for routing in (npu_moe_init_routing_custom, npu_moe_init_routing_v2)
    ]
    for result, other in zip(*results, strict=True):
        assert torch.equal(result, other)
    rows, index, counts, _ = results[0]
    choices = expert_idx.flatten().tolist()
    order = reference_order(choices, first, end)
    num_rows = tokens * k if limit == -1 else limit
    assert rows.shape == (num_rows, 4)
    for row in range(num_rows):
        expected = x[order[row] // k] if row < len(order) else torch.zeros(4)
        assert torch.equal(rows[row], expected)
    if row_idx_type == 0:
        assert index.tolist() == [
            order.index(place) if place in order else -1 for place in range(tokens * k)
        ]
    else:
        assert index.tolist() == order + [-1] * (tokens * k - len(order))
    per_expert = [choices.count(expert) for expert in range(first, end)]
    if tokens_type == 0:
        assert counts.tolist() == [sum(per_expert[: i + 1]) for i in range(len(per_expert))]
    elif tokens_type == 1:
        assert counts.tolist() == per_expert
    else:
        pairs = [[first + i, count] for i, count in enumerate(per_expert) if count]
        assert counts.tolist() == pairs + [[0, 0]] * (8 - len(pairs))


@few
@given(seeds, st.integers(1, 5), st.sampled_from(["none", "shared", "each"]))
def test_init_routing_with_dynamic_quantisation(seed, tokens, scales):
    x = random_tensor(seed, (tokens, 6)) + 0.1
    expert_idx = random_integers(seed, 0, 4, (tokens, 2))
    rows = {"none": 0, "shared": 1, "each": 4}[scales]
    scale = random_tensor(seed + 1, (rows, 6)) + 3 if rows else None
    quantised, _, _, row_scales = npu_moe_init_routing_custom.checked(
        x, expert_idx, scale=scale, expert_num=4, quant_mode=1
    )
    choices = expert_idx.flatten().tolist()
    for row, place in enumerate(reference_order(choices, 0, 4)):
        smooth = [1.0] * 6
        if scale is not None:
            smooth = scale[choices[place] if rows > 1 else 0].double().tolist()
        values = [a * b for a, b in zip(x[place // 2].double().tolist(), smooth, strict=True)]
        row_scale = max(abs(value) for value in values) / 127
        assert float(row_scales[row]) == pytest.approx(row_scale, rel=1e-5)
        for value, got in zip(values, quantised[row].tolist(), strict=True):
            assert abs(value / row_scale - got) <= 0.5 + 1e-3


def test_init_routing_with_static_quantisation():
    x = torch.tensor([[1.0, -2.0, 100.0], [0.5, 0.0, -100.0]])
    expert_idx = torch.tensor([[1], [0]], dtype=torch.int32)
    quantised, _, _, _ = npu_moe_init_routing_v2.checked(
        x,
        expert_idx,
        scale=torch.tensor([2.0]),
        offset=torch.tensor([1.0]),
        expert_num=2,
        quant_mode=0,
    )
    assert quantised.tolist() == [[2, 1, -128], [3, -3, 127]]


@few
@given(seeds, float_dtypes, st.integers(1, 6), st.integers(1, 3))
def test_permute_and_unpermute(seed, dtype, tokens, k):
    x = random_tensor(seed, (tokens, 5), dtype)
    indices = random_integers(seed, 0, 4, (tokens, k))
    probs = random_tensor(seed + 1, (tokens, k), dtype)
    rows, places = npu_moe_token_permute.checked(x, indices)
    order = reference_order(indices.flatten().tolist(), 0, 4)
    assert torch.equal(rows, x[[place // k for place in order]])
    assert places.tolist() == [order.index(place) for place in range(tokens * k)]
    expected = [
        [
            sum(float(probs[token, choice]) * value for choice in range(k))
            for value in x[token].double().tolist()
        ]
        for token in range(tokens)
    ]
    assert_near(npu_moe_token_unpermute.checked(rows, places, probs), expected)
    if k == 1:
        assert torch.equal(npu_moe_token_unpermute.checked(rows, places), x)
    kept, _ = npu_moe_token_permute.checked(x, indices, 1)
    assert torch.equal(kept, rows[:1])


def test_gating_refusals():
    x = torch.zeros(2, 8)
    with refused(r"npu_moe_gating_top_k: renorm is 1; it must be 0"):
        npu_moe_gating_top_k.checked(x, 2, renorm=1)
    with refused("k is 9; it must be from 1 to 8"):
        npu_moe_gating_top_k.checked(x, 9)
    with refused("group_count is 4; it must divide the 8 experts into groups of 3 or more"):
        npu_moe_gating_top_k.checked(x, 2, group_count=4)
    with refused("x is float32, bias is float16"):
        npu_moe_gating_top_k.checked(x, 2, bias=torch.zeros(8).half())
    with refused("the number of experts is 2049"):
        npu_moe_gating_top_k.checked(torch.zeros(1, 2049), 2)
    with refused("padded to 32, is 3200"):
        npu_moe_gating_top_k.checked(torch.zeros(1, 300), 2, group_count=100)
    moe_gating_top_k.checked(x, 2, 2, 4, 1, 1, 0, False, 1.0, EPSILON)
    with refused("_C_ascend.moe_gating_top_k: group_count is 8; .* groups of 2 or more"):
        moe_gating_top_k.checked(x, 2, 2, 8, 1, 1, 0, False, 1.0, EPSILON)
    with refused("_C_ascend.moe_gating_top_k: k_group is 3; it must be from 1 to 2"):
        moe_gating_top_k.checked(x, 2, 3, 2, 0, 1, 0, False, 1.0, EPSILON)
    with refused("npu_moe_gating_top_k_softmax: x is int32"):
        npu_moe_gating_top_k_softmax.checked(x.int(), None, 1)


def test_routing_refusals():
    x, expert_idx = torch.zeros(2, 4), torch.zeros(2, 2, dtype=torch.int32)
    with refused("expert_idx is int64; documented: int32"):
        npu_moe_init_routing_v2.checked(x, expert_idx.long(), expert_num=4)
    with refused(r"active_expert_range is \[2, 6\]"):
        npu_moe_init_routing_v2.checked(x, expert_idx, expert_num=4, active_expert_range=[2, 6])
    with refused("the least of expert_idx is 4; it must be from 0 to 3"):
        npu_moe_init_routing_v2.checked(x, expert_idx + 4, expert_num=4)
    with refused("static quantisation needs scale and offset"):
        npu_moe_init_routing_v2.checked(x, expert_idx, expert_num=4, quant_mode=0)
    with refused("indices has 3 rows; tokens has 2"):
        npu_moe_token_permute.checked(x, torch.zeros(3, 1, dtype=torch.int32))
    with refused("the largest of sorted_indices is 2; it must be from 0 to 1"):
        npu_moe_token_unpermute.checked(x, torch.tensor([0, 2], dtype=torch.int32))
    with refused("sorted_indices is int64"):
        npu_moe_token_unpermute.checked(x, torch.tensor([0, 1]))


def test_missing_modes_fail_by_name():
    x, expert_idx = torch.zeros(2, 4), torch.zeros(2, 2, dtype=torch.int32)
    with pytest.raises(NotImplementedError, match="npu_moe_init_routing_v2 with drop_pad_mode 1"):
        npu_moe_init_routing_v2.kernel(x, expert_idx, expert_num=4, drop_pad_mode=1)
    with pytest.raises(NotImplementedError, match=r"_C_ascend.*with quant_mode 3"):
        npu_moe_init_routing_custom.kernel(x, expert_idx, expert_num=4, quant_mode=3)
    with pytest.raises(NotImplementedError, match="npu_moe_token_permute with padded_mode"):
        npu_moe_token_permute.kernel(x, expert_idx, padded_mode=True)
