# SPDX-License-Identifier: Apache-2.0
"""Operators of fla_npu, against their rules in plain loops in float64."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from emulated_npu.linear_attention.convolution import causal_conv1d_fn, causal_conv1d_update
from emulated_npu.linear_attention.gated_delta_rule import (
    chunk_gated_delta_rule_fwd,
    recurrent_gated_delta_rule,
)
from tests.support.operators.operator_testing import assert_near, few, random_tensor, refused, seeds
from tests.support.operators.recurrent_reference import (
    BF16,
    F32,
    convolved,
    int32,
    layer_inputs,
    recurrence,
)

CHANNELS = 16


def states_apart(seed, blocks, shape, dtype, gap=5):
    """Random states [blocks, *shape] with ``gap`` numbers between them, as vLLM's pages leave."""
    size = math.prod(shape)
    pages = random_tensor(seed, (blocks, size + gap), dtype, 1)
    return pages.as_strided((blocks, *shape), (size + gap, *torch.empty(shape).stride())), pages


@few
@given(
    seeds,
    st.lists(st.integers(0, 5), min_size=1, max_size=4),
    st.sampled_from([None, "silu"]),
    st.booleans(),
    st.sampled_from([2, 3, 4]),
)
def test_convolution_of_prompts(seed, lengths, activation, has_bias, width):
    """Blocks -1 and 0 are padding; what lies between the states stays as it was."""
    x = random_tensor(seed, (sum(lengths) + 2, CHANNELS), BF16)  # two tokens of padding
    weight = random_tensor(seed + 1, (width, CHANNELS), BF16)
    state, pages = states_apart(seed + 2, 6, (5, CHANNELS), BF16)
    bias = random_tensor(seed + 3, (CHANNELS,), BF16) if has_bias else None
    begun = [request % 2 == 0 for request in range(len(lengths))]
    blocks = [5, 2, -1, 0][: len(lengths)]
    starts = [sum(lengths[:i]) for i in range(len(lengths) + 1)]
    before, gaps = state.clone(), pages[:, -5:].clone()
    output = causal_conv1d_fn.checked(
        x, weight, bias, conv_states=state, query_start_loc=int32(starts),
        cache_indices=int32(blocks), has_initial_state=torch.tensor(begun), activation=activation,
        pad_slot_id=-1, null_block_id=0,
    )  # fmt: skip
    wanted_state, wanted = before.clone(), torch.zeros(x.shape, dtype=torch.float64)
    for request, (start, end) in enumerate(itertools.pairwise(starts)):
        block = blocks[request]
        if end > start and block > 0:
            tokens = torch.cat((before[block, : width - 1] * begun[request], x[start:end]))
            wanted[start:end] = convolved(tokens, weight, bias, activation == "silu")
            wanted_state[block, : width - 1] = tokens[-(width - 1) :]
    assert_near(output, wanted)
    assert torch.equal(state, wanted_state)
    assert torch.equal(pages[:, -5:], gaps)


@few
@given(
    seeds,
    st.lists(st.integers(1, 4), min_size=1, max_size=5),
    st.sampled_from([2, 3, 4]),
    st.booleans(),
)
def test_convolution_goes_on_from_what_was_accepted(seed, accepted_counts, width, has_out):
    """Rounds of four draft tokens, some of them accepted, are one sequence of those accepted."""
    drafted = 4
    weight = random_tensor(seed, (width, CHANNELS), BF16)
    state, _ = states_apart(seed, 3, (width - 1 + drafted, CHANNELS), BF16)
    sequence, accepted = state[2, : width - 1].clone(), 1
    for number, accepted_next in enumerate(accepted_counts):
        x = random_tensor(seed + number, (drafted, CHANNELS), BF16)
        out = torch.full_like(x, 7) if has_out else None
        output = causal_conv1d_update.checked(
            x, state, weight, bias=None, activation="silu", conv_state_indices=int32([2, 0]),
            num_accepted_tokens=int32([accepted, 1]), query_start_loc=int32([0, drafted, drafted]),
            max_query_len=drafted, null_block_id=0, out=out,
        )  # fmt: skip
        assert out is None or output is out
        assert_near(output, convolved(torch.cat((sequence[1 - width :], x)), weight, None, True))
        sequence, accepted = torch.cat((sequence, x[:accepted_next])), accepted_next


def test_convolution_of_one_token_each():
    weight, state = random_tensor(1, (4, CHANNELS), BF16), random_tensor(2, (4, 3, CHANNELS), BF16)
    x, before = random_tensor(3, (3, CHANNELS), BF16), state.clone()
    out = torch.full_like(x, 7)
    causal_conv1d_update.checked(x, state, weight, conv_state_indices=int32([3, 0, 1]), out=out)
    for request, block in ((0, 3), (2, 1)):
        tokens = torch.cat((before[block], x[request : request + 1]))
        assert_near(out[request], convolved(tokens, weight, None, silu=False))
        assert torch.equal(state[block], tokens[1:])
    assert bool((out[1] == 7).all()), "a row of the null block is written"
    assert torch.equal(state[[0, 2]], before[[0, 2]])


def test_convolutions_refuse_what_the_kernel_does_not_do():
    def call(x=(2, 16), width=4, rows=5, blocks=(1,), accepted=None, starts=(0, 2), **changed):
        states = changed.pop("states", torch.zeros(2, rows, x[1], dtype=BF16))
        causal_conv1d_update.checked(
            torch.zeros(x, dtype=changed.pop("dtype", BF16)), states,
            torch.zeros(width, x[1], dtype=BF16), conv_state_indices=int32(blocks),
            num_accepted_tokens=accepted, query_start_loc=int32(starts), **changed,
        )  # fmt: skip

    call()
    with refused("no multiple of 16"):
        call(x=(2, 17))
    with refused("width is 5; it must be from 2 to 4"):
        call(width=5)
    with refused("blocks .* are not from 0 to 1"):
        call(blocks=(2,))
    with refused("does not rise from 0 to 2"):
        call(starts=(0, 3))
    with refused("reaches outside the 5 rows"):
        call(accepted=int32([4]))
    with refused("2 tokens to verify need 4"):
        call(rows=3, accepted=int32([1]))
    with refused("x is float64"):
        call(dtype=torch.float64)
    with refused("activation is 'relu'"):
        call(activation="relu")
    with refused("states that are not contiguous"):
        call(states=torch.zeros(2, 16, 5, dtype=BF16).transpose(1, 2))
    with refused("blocks that overlap"):
        call(states=torch.zeros(1, 5, 16, dtype=BF16).expand(2, 5, 16))


@few
@given(seeds, st.lists(st.integers(0, 3), min_size=1, max_size=3), st.booleans())
def test_recurrent_rule(seed, lengths, verifies):
    tokens = sum(lengths)
    inputs = layer_inputs(seed, tokens)
    state, pages = states_apart(seed, tokens + 2, (2, 3, 4), F32)
    order = torch.Generator().manual_seed(seed)
    blocks = torch.randperm(tokens + 2, generator=order)[:tokens].int()
    accepted = int32([max(1, length) for length in lengths]) if verifies else None
    before, gaps = state.clone(), pages[:, -5:].clone()
    output = recurrent_gated_delta_rule.checked(
        **inputs, state=state, scale=0.5, actual_seq_lengths=int32([0, *lengths]),
        ssm_state_indices=blocks, num_accepted_tokens=accepted,
    )  # fmt: skip
    start = 0
    wanted_state = before.clone()
    for length in lengths:
        if length:
            part = slice(start, start + length)
            first = blocks[start + length - 1 if verifies else start]
            ordered = (inputs[name][part] for name in ("query", "key", "value", "g", "beta"))
            states, expected = recurrence(before[first], *ordered, 0.5)
            assert_near(output[part], expected, 3e-2)
            for block, after in zip(blocks[part], states, strict=True):
                wanted_state[block] = after.float()
        start += length
    assert_near(state.contiguous(), wanted_state.double(), 1e-5)
    assert torch.equal(pages[:, -5:], gaps)


def test_recurrent_rule_refuses_what_the_kernel_does_not_do():
    def call(tokens=2, **changed):
        inputs = layer_inputs(0, tokens)
        given = {
            "state": torch.zeros(tokens + 1, 2, 3, 4), "actual_seq_lengths": int32([0, tokens]),
            "ssm_state_indices": torch.arange(tokens).int(),
        }  # fmt: skip
        recurrent_gated_delta_rule.checked(**{**inputs, **given, **changed})

    call()
    with refused("more than 8 tokens"):
        call(tokens=9)
    with refused("g and gk are None"):
        call(g=None)
    with refused("query is float16"):
        call(query=layer_inputs(0, 2)["query"].half())
    with refused("states that are not contiguous"):
        call(state=torch.zeros(3, 2, 4, 3).transpose(2, 3))
    with pytest.raises(NotImplementedError, match="decay per channel"):
        call(gk=torch.zeros(2, 2, 4))


@few
@given(
    seeds,
    st.lists(st.integers(1, 4), min_size=1, max_size=3),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_rule_over_prompts(seed, lengths, head_first, value_first, has_state):
    """With several sequences in one batch, both layouts, states with either size first."""
    tokens = sum(lengths)
    inputs = {name: part[None] for name, part in layer_inputs(seed, tokens, BF16).items()}
    start = random_tensor(seed, (len(lengths), 2, 3, 4), spread=1) * has_state
    bounds = [sum(lengths[:i]) for i in range(len(lengths) + 1)]
    given_state = start if value_first else start.transpose(2, 3).contiguous()
    names = ("query", "key", "value")
    parts = [inputs[n].transpose(1, 2) if head_first else inputs[n] for n in names]
    output, final = chunk_gated_delta_rule_fwd.checked(
        *parts, inputs["g"], inputs["beta"], initial_state=given_state if has_state else None,
        output_final_state=True, cu_seqlens=tuple(bounds), scale=0.5,
        layout="BNSD" if head_first else "BSND", disable_recompute=True, state_v_first=value_first,
    )  # fmt: skip
    assert (output.shape, output.dtype) == ((1, tokens, 2, 3), BF16)
    final = final if value_first else final.transpose(2, 3)
    for sequence, (first, last) in enumerate(itertools.pairwise(bounds)):
        ordered = (inputs[n][0, first:last] for n in (*names, "g", "beta"))
        states, expected = recurrence(start[sequence], *ordered, 0.5)
        assert_near(output[0, first:last], expected, 3e-2)
        assert_near(final[sequence].contiguous(), states[-1], 1e-4)


def test_rule_over_a_batch_of_prompts():
    """Without cu_seqlens each row of the batch is a sequence."""
    inputs = layer_inputs(3, 6, F32)
    names = ("query", "key", "value", "g", "beta")
    parts = [inputs[name].reshape(2, 3, *inputs[name].shape[1:]) for name in names]
    output, final = chunk_gated_delta_rule_fwd.kernel(*parts, scale=0.5, disable_recompute=True)
    assert final is None
    for sequence in range(2):
        start = torch.zeros(2, 3, 4)
        _, expected = recurrence(start, *(part[sequence] for part in parts), 0.5)
        assert_near(output[sequence], expected, 1e-4)


def test_rule_over_prompts_refuses_what_is_not_there():
    def call(**changed):
        inputs = [part[None] for part in layer_inputs(0, 2).values()]
        named = {"disable_recompute": True, **changed}
        chunk_gated_delta_rule_fwd.checked(*inputs, **named)

    call()
    with refused("without empty sequences"):
        call(cu_seqlens=[0, 0, 2])
    with refused("chunk_size is 32"):
        call(chunk_size=32)
    with refused("initial_state has shape"):
        call(initial_state=torch.zeros(1, 2, 3, 4))
    for option in ({"use_exp2": True}, {"disable_recompute": False}):
        with pytest.raises(NotImplementedError, match=next(iter(option))):
            call(**option)
