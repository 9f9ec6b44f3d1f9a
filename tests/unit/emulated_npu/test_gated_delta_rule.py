# SPDX-License-Identifier: Apache-2.0
"""Operators of layers with a recurrent state, against the rule in plain loops in float64."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from emulated_npu.custom_operators.convolution import npu_causal_conv1d_custom
from emulated_npu.custom_operators.gated_delta_rule import (
    npu_fused_gdn_gating,
    npu_recurrent_gated_delta_rule,
)
from emulated_npu.custom_operators.gated_delta_rule_chunks import (
    chunk_fwd_o,
    chunk_fwd_o_vllm,
    chunk_gated_delta_rule_fwd_h,
    chunk_gated_delta_rule_fwd_h_vllm,
)
from emulated_npu.triton_interpreter import replacements
from tests.support.operators.operator_testing import assert_near, few, random_tensor, refused, seeds
from tests.support.operators.recurrent_reference import (
    BF16,
    F32,
    convolved,
    int32,
    layer_inputs,
    recurrence,
)

PAD = -1


@few
@given(
    seeds,
    st.lists(st.integers(0, 5), min_size=1, max_size=3),
    st.booleans(),
    st.booleans(),
    st.sampled_from([2, 4]),
)
def test_convolution_of_prompts(seed, lengths, silu, has_bias, width):
    x = random_tensor(seed, (sum(lengths), 3), BF16)
    weight, state = (
        random_tensor(seed + 1, (width, 3), BF16),
        random_tensor(seed + 2, (6, 5, 3), BF16),
    )
    bias = random_tensor(seed + 3, (3,), BF16) if has_bias else None
    has_window = [i % 2 == 0 for i in range(len(lengths))]
    blocks = [5, 0, 3][: len(lengths)]
    starts = [sum(lengths[:i]) for i in range(len(lengths) + 1)]
    before, output = state.clone(), torch.full_like(x, 7)
    npu_causal_conv1d_custom.checked(
        output, x, weight, state, bias, int32(starts), int32(blocks), torch.tensor(has_window),
        None, int(silu), PAD, 0,
    )  # fmt: skip
    for request, (start, length) in enumerate(zip(starts, lengths, strict=False)):
        if not length:
            assert torch.equal(state[blocks[request]], before[blocks[request]])
            continue
        window = before[blocks[request], : width - 1] * has_window[request]
        tokens = torch.cat((window, x[start : start + length]))
        assert_near(output[start : start + length], convolved(tokens, weight, bias, silu))
        assert torch.equal(state[blocks[request], : width - 1], tokens[-(width - 1) :])
        assert torch.equal(
            state[blocks[request], width - 1 :], before[blocks[request], width - 1 :]
        )


@few
@given(seeds, st.lists(st.integers(1, 4), min_size=1, max_size=5))
def test_convolution_goes_on_from_what_was_accepted(seed, accepted_counts):
    """Rounds of four draft tokens, some of them accepted, are one sequence of those accepted."""
    width, drafted = 4, 4
    weight, state = (
        random_tensor(seed, (width, 3), BF16),
        torch.zeros(2, width - 1 + drafted, 3, dtype=BF16),
    )
    sequence, accepted = torch.zeros(width - 1, 3, dtype=BF16), 1
    for number, accepted_next in enumerate(accepted_counts):
        x = random_tensor(seed + number, (drafted, 3), BF16)
        output = torch.empty_like(x)
        npu_causal_conv1d_custom.checked(
            output, x, weight, state, None, int32([0, drafted]), int32([[1, 0]]), None,
            int32([accepted]), 0, PAD, 1,
        )  # fmt: skip
        assert_near(output, convolved(torch.cat((sequence[-3:], x)), weight, None, silu=False))
        sequence, accepted = torch.cat((sequence, x[:accepted_next])), accepted_next


def test_convolution_refuses_what_the_kernel_does_not_do():
    arguments = {
        "output": torch.zeros(2, 3, dtype=BF16), "x": torch.zeros(2, 3, dtype=BF16),
        "weight": torch.zeros(4, 3, dtype=BF16), "conv_state": torch.zeros(2, 5, 3, dtype=BF16),
        "bias_opt": None, "query_start_loc_opt": int32([0, 2]), "cache_indices_opt": int32([1]),
        "initial_state_mode_opt": None, "num_accepted_tokens_opt": int32([1]), "activation_mode": 0,
        "pad_slot_id": PAD, "run_mode": 1,
    }  # fmt: skip

    def call(**changed):
        npu_causal_conv1d_custom.checked(**{**arguments, **changed})

    call()
    with refused("needs width 4"):
        call(weight=torch.zeros(3, 3, dtype=BF16))
    with refused("blocks outside 0 to 1"):
        call(cache_indices_opt=int32([2]))
    with refused("reaches outside the 5 rows"):
        call(num_accepted_tokens_opt=int32([4]))
    with refused("2 tokens to verify need 4"):
        call(conv_state=torch.zeros(2, 3, 3, dtype=BF16))
    with refused("x is float64"):
        call(x=torch.zeros(2, 3, dtype=torch.float64))


@few
@given(seeds, st.lists(st.integers(0, 3), min_size=1, max_size=3), st.booleans())
def test_recurrent_rule(seed, lengths, verifies):
    tokens = sum(lengths)
    inputs = layer_inputs(seed, tokens)
    state = random_tensor(seed, (tokens + 2, 2, 3, 4), spread=1)
    blocks = torch.randperm(tokens + 2, generator=torch.Generator().manual_seed(seed))[
        :tokens
    ].int()
    accepted = int32([max(1, length) for length in lengths]) if verifies else None
    before = state.clone()
    output = npu_recurrent_gated_delta_rule.checked(
        **inputs, state=state, scale=0.5, actual_seq_lengths=int32([0, *lengths]),
        ssm_state_indices=blocks, num_accepted_tokens=accepted,
    )  # fmt: skip
    start = 0
    for length in lengths:
        if length:
            part = slice(start, start + length)
            first = blocks[start + length - 1 if verifies else start]
            given_inputs = (inputs[name][part] for name in ("query", "key", "value", "g", "beta"))
            states, expected = recurrence(before[first], *given_inputs, 0.5)
            assert_near(output[part], expected, 3e-2)
            for block, after in zip(blocks[part], states, strict=True):
                assert_near(state[block], after, 1e-5)
        start += length
    untouched = sorted(set(range(tokens + 2)) - set(blocks.tolist()))
    assert torch.equal(state[untouched], before[untouched])


def test_recurrent_rule_refuses_what_the_kernel_does_not_do():
    inputs = layer_inputs(0, 2)
    state, lengths, blocks = torch.zeros(3, 2, 3, 4), int32([0, 2]), int32([1, 2])

    def call(**changed):
        arguments = {"state": state, "actual_seq_lengths": lengths, "ssm_state_indices": blocks}
        npu_recurrent_gated_delta_rule.checked(**{**inputs, **arguments, **changed})

    call()
    with refused("blocks outside 0 to 2"):
        call(ssm_state_indices=int32([1, 3]))
    with refused("reaches token 3"):
        call(actual_seq_lengths=int32([0, 3]))
    with refused("not from 1 to the lengths"):
        call(num_accepted_tokens=int32([3]))
    with refused("query is float16"):
        call(query=inputs["query"].half())
    with pytest.raises(NotImplementedError, match="decay per channel"):
        call(gk=torch.zeros(2, 4))


def written_in_wy_form(inputs, chunk):
    """w, u and the decay summed within each chunk: what the Triton kernels hand over."""
    key, value = inputs["key"].double(), inputs["value"].double()
    tokens, heads = value.shape[:2]
    sums = torch.zeros(tokens, heads, dtype=torch.float64)
    w = torch.zeros(tokens, heads, key.shape[2], dtype=torch.float64)
    u = torch.zeros_like(value)
    for start in range(0, tokens, chunk):
        part = slice(start, min(start + chunk, tokens))
        sums[part] = inputs["g"][part].double().cumsum(0)
        for h in range(heads):
            k, beta, g = key[part, 0], inputs["beta"][part, h].double(), sums[part, h]
            pull = (k @ k.T) * (g[:, None] - g[None, :]).exp() * beta[:, None]
            solved = torch.linalg.inv(torch.eye(len(k), dtype=torch.float64) + pull.tril(-1))
            u[part, h] = solved @ (value[part, h] * beta[:, None])
            w[part, h] = solved @ (k * (beta * g.exp())[:, None])
    return w, u, sums


NAMES_OF_CHUNKS = (
    (chunk_gated_delta_rule_fwd_h, chunk_fwd_o),
    (chunk_gated_delta_rule_fwd_h_vllm, chunk_fwd_o_vllm),
)
"""As vllm-ascend 0.23 and 0.30 call them."""


@few
@given(st.sampled_from(NAMES_OF_CHUNKS), seeds, st.integers(1, 9))
def test_chunks_give_what_the_recurrence_gives(names, seed, tokens):
    inputs = layer_inputs(seed, tokens, F32)
    w, u, sums = written_in_wy_form(inputs, chunk=4)
    start = random_tensor(seed, (1, 2, 4, 3), spread=1)

    def by_head(tensor):
        return tensor.float().transpose(0, 1).unsqueeze(0).contiguous()

    key, query = by_head(inputs["key"]), by_head(inputs["query"])
    states_of, outputs_of = names
    h, values, final = states_of.kernel(
        key, by_head(w), by_head(u), by_head(sums), initial_state=start, output_final_state=True,
        chunk_size=4, cu_seqlens=[0, tokens],
    )  # fmt: skip
    output = outputs_of.kernel(
        query, key, values, h, 0.5, g=by_head(sums), cu_seqlens=[0, tokens], chunk_size=4
    )
    ordered = (inputs[name] for name in ("query", "key", "value", "g", "beta"))
    states, expected = recurrence(start[0].transpose(1, 2), *ordered, 0.5)
    assert_near(output[0].transpose(0, 1), expected, 1e-4)
    assert_near(final[0].transpose(1, 2), states[-1], 1e-4)


@few
@given(seeds, st.lists(st.integers(0, 4), min_size=1, max_size=3))
def test_replaced_rule_over_prompts(seed, lengths):
    inputs = layer_inputs(seed, sum(lengths), F32)
    start = random_tensor(seed, (len(lengths), 2, 4, 3), spread=1)
    bounds = [sum(lengths[:i]) for i in range(len(lengths) + 1)]
    ordered = [inputs[name].unsqueeze(0) for name in ("query", "key", "value", "g", "beta")]
    output, final = replacements.chunk_gated_delta_rule(
        *ordered, initial_state=start, output_final_state=True, cu_seqlens=torch.tensor(bounds),
        use_qk_l2norm_in_kernel=True,
    )  # fmt: skip
    unit = {}
    for name in ("query", "key"):
        wide = inputs[name].double()
        unit[name] = wide / (wide.square().sum(-1, keepdim=True) + 1e-6).sqrt()
    for sequence, (first, last) in enumerate(itertools.pairwise(bounds)):
        part = slice(first, last)
        if first == last:
            assert torch.equal(final[sequence], start[sequence])
            continue
        given_inputs = (
            {**inputs, **unit}[name][part] for name in ("query", "key", "value", "g", "beta")
        )
        states, expected = recurrence(start[sequence].transpose(1, 2), *given_inputs, 0.5)
        assert_near(output[0, part], expected, 1e-4)
        assert_near(final[sequence].transpose(1, 2), states[-1], 1e-4)


def test_replaced_split_of_projections():
    """Element by element: the source's place of each part is written out."""
    key_heads, heads, key_size, value_size, tokens = 2, 4, 3, 2, 3
    shared = heads // key_heads
    width = 2 * key_size + 2 * shared * value_size
    qkvz = torch.arange(tokens * key_heads * width).view(tokens, -1)
    ba = torch.arange(tokens * key_heads * 2 * shared).view(tokens, -1)
    qkv, z, b, a = replacements.fused_qkvzba_split_reshape_cat(
        qkvz, ba, key_heads, heads, key_size, value_size
    )
    for t in range(tokens):
        for h in range(heads):
            head, rest = divmod(h, shared)
            values = head * width + 2 * key_size + rest * value_size
            for i in range(value_size):
                at = 2 * key_heads * key_size + h * value_size + i
                assert qkv[t, at] == qkvz[t, values + i]
                assert z[t, h, i] == qkvz[t, values + shared * value_size + i]
            assert b[t, h] == ba[t, head * 2 * shared + rest]
            assert a[t, h] == ba[t, head * 2 * shared + shared + rest]
        for h in range(key_heads):
            for i in range(key_size):
                assert qkv[t, h * key_size + i] == qkvz[t, h * width + i]
                k_at = key_heads * key_size + h * key_size + i
                assert qkv[t, k_at] == qkvz[t, h * width + key_size + i]


@few
@given(seeds)
def test_gating(seed):
    # As a layer hands them over: columns of one projection.
    wide, narrow = random_tensor(seed, (3, 4), BF16, 30), random_tensor(seed + 1, (3, 4), BF16)
    a, b = wide.chunk(2, dim=-1)[1], narrow.chunk(2, dim=-1)[0]
    a_log, dt_bias = random_tensor(seed + 2, (2,)), random_tensor(seed + 3, (2,))
    g, beta = npu_fused_gdn_gating.checked(a_log, a, b, dt_bias)
    assert (g.shape, g.dtype, beta.dtype) == ((1, 3, 2), F32, BF16)
    for t in range(3):
        for h in range(2):
            shifted = float(a[t, h]) + float(dt_bias[h])
            soft = shifted if shifted > 20 else math.log1p(math.exp(shifted))
            assert float(g[0, t, h]) == pytest.approx(
                -math.exp(float(a_log[h])) * soft, rel=1e-5, abs=1e-6
            )
            assert float(beta[0, t, h]) == pytest.approx(
                1 / (1 + math.exp(-float(b[t, h]))), rel=1e-2
            )
