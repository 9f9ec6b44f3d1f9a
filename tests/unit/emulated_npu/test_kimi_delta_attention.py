# SPDX-License-Identifier: Apache-2.0
"""Kimi delta attention of fla_npu and of Triton, against its rule in scalar loops in float64."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from emulated_npu.linear_attention.kimi_delta_attention import chunk_kda_fwd, recurrent_kda
from emulated_npu.triton_interpreter import replacements_kda as kda
from tests.support.operators.operator_testing import assert_near, few, random_tensor, refused, seeds
from tests.support.operators.recurrent_reference import BF16, int32

KEY_HEADS, HEADS = 1, 2
SCALE = 0.3


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def log_decay(raw, rate, bias, lower_bound):
    """Of one channel: softplus, or the safe form with its lower bound."""
    speed = math.exp(rate)
    if lower_bound is not None:
        return lower_bound * sigmoid(speed * (raw + bias))
    return -speed * math.log1p(math.exp(raw + bias))


def unit(vector):
    length = math.sqrt(sum(x * x for x in vector) + 1e-6)
    return [x / length for x in vector]


def advanced(state, q, k, v, decay, beta):
    """One token of one head: the state [value][key] afterwards and the output."""
    keys = range(len(k))
    state = [[row[j] * math.exp(decay[j]) for j in keys] for row in state]
    for i, row in enumerate(state):
        error = (v[i] - sum(row[j] * k[j] for j in keys)) * beta
        state[i] = [row[j] + error * k[j] for j in keys]
    return state, [sum(row[j] * q[j] * SCALE for j in keys) for row in state]


def layer(seed, tokens, key_size, value_size, dtype=BF16):
    shapes = (
        (1, tokens, KEY_HEADS, key_size), (1, tokens, KEY_HEADS, key_size),
        (1, tokens, HEADS, value_size), (1, tokens, HEADS, key_size), (1, tokens, HEADS),
    )  # fmt: skip
    return [random_tensor(seed + i, shape, dtype, 1) for i, shape in enumerate(shapes)]


def sequence_of(state, parts, tokens, head, gate, normalise=False, sigmoid_beta=None):
    """States after each of the tokens, and outputs, of one head."""
    q, k, v, g, beta = parts
    states, outputs = [], []
    for t in tokens:
        queries, keys = q[0, t, 0].double().tolist(), k[0, t, 0].double().tolist()
        if normalise:
            queries, keys = unit(queries), unit(keys)
        decay = [gate(float(raw), head, j) for j, raw in enumerate(g[0, t, head])]
        step = float(beta[0, t, head])
        if sigmoid_beta is not None:
            step = sigmoid(step) * sigmoid_beta
        values = v[0, t, head].double().tolist()
        state, out = advanced(state, queries, keys, values, decay, step)
        states.append(state)
        outputs.append(out)
    return states, outputs


@few
@given(
    seeds,
    st.lists(st.integers(1, 4), min_size=1, max_size=3),
    st.sampled_from([None, -5.0]),
    st.booleans(),
)
def test_prompts(seed, lengths, lower_bound, value_first):
    parts = layer(seed, sum(lengths), 4, 3)
    rate, bias = random_tensor(seed + 5, (HEADS,)), random_tensor(seed + 6, (HEADS * 4,))
    start = random_tensor(seed + 7, (len(lengths), HEADS, 3, 4), spread=1)
    bounds = [sum(lengths[:i]) for i in range(len(lengths) + 1)]
    output, final, *others = chunk_kda_fwd.checked(
        *parts, SCALE, 64, initial_state=start if value_first else start.transpose(2, 3),
        output_final_state=True, cu_seqlens=bounds, safe_gate=lower_bound is not None,
        lower_bound=lower_bound, use_gate_in_kernel=True, A_log=rate, dt_bias=bias,
        state_v_first=value_first,
    )  # fmt: skip
    assert others == [None] * 10
    final = final if value_first else final.transpose(2, 3)

    def gate(raw, head, channel):
        return log_decay(raw, float(rate[head]), float(bias[head * 4 + channel]), lower_bound)

    for sequence in range(len(lengths)):
        tokens = range(bounds[sequence], bounds[sequence + 1])
        for head in range(HEADS):
            before = start[sequence, head].double().tolist()
            states, outputs = sequence_of(before, parts, tokens, head, gate)
            assert_near(output[0, bounds[sequence] : bounds[sequence + 1], head], outputs, 3e-2)
            assert_near(final[sequence, head].contiguous(), states[-1], 1e-4)


@pytest.mark.parametrize("verifies", [False, True])
@pytest.mark.parametrize("in_place", [False, True])
def test_decodes_and_verifications(verifies, in_place):
    """Each token's state goes to its own block; a verification starts from the accepted one."""
    lengths, key_size, value_size = [2, 0, 3], 128, 128
    parts = layer(11, 5, key_size, value_size)
    pages = random_tensor(3, (7, HEADS * value_size * key_size + 64), spread=0.1)
    state = pages[:, :-64].view(7, HEADS, value_size, key_size)
    blocks = int32([[4, 2, 0], [0, 0, 0], [1, 6, 5]])
    accepted = int32([2, 1, 3]) if verifies else None
    before = state.clone()
    output, after = recurrent_kda.checked(
        *parts, state, cu_seqlens=int32([0, 2, 2, 5]), ssm_state_indices=blocks,
        num_accepted_tokens=accepted, scale=SCALE, output_final_state=True,
        inplace_final_state=in_place, use_qk_l2norm_in_kernel=True,
        use_beta_sigmoid_in_kernel=True, allow_neg_eigval=True,
    )  # fmt: skip
    assert (after is state) == in_place
    assert in_place or torch.equal(state, before)
    wanted, start = before.double(), 0
    for sequence, length in enumerate(lengths):
        for head in range(HEADS) if length else ():
            first = blocks[sequence, int(accepted[sequence]) - 1 if verifies else 0]
            states, outputs = sequence_of(
                before[first, head].double().tolist(), parts, range(start, start + length), head,
                lambda raw, *_: raw, normalise=True, sigmoid_beta=2.0,
            )  # fmt: skip
            assert_near(output[0, start : start + length, head], outputs, 3e-2)
            for token, one in enumerate(states):
                wanted[blocks[sequence, token], head] = torch.tensor(one, dtype=torch.float64)
        start += length
    assert_near(after.contiguous(), wanted, 1e-4)


def test_what_the_kernels_do_not_do_is_refused():
    def call(sizes=(128, 128), lengths=(0, 2), dtype=BF16, **changed):
        state = torch.zeros(2, HEADS, sizes[1], sizes[0])
        recurrent_kda.checked(
            *layer(0, 2, *sizes, dtype), state, cu_seqlens=int32(lengths), **changed
        )

    call()
    with refused("the key size is 64"):
        call(sizes=(64, 128))
    with refused("steps outside 0 to 8"):
        call(lengths=(0, 9))
    with refused("q is float16"):
        call(dtype=torch.float16)
    with refused("A_log is None"):
        call(use_gate_in_kernel=True)
    with refused("num_accepted_tokens without"):
        call(num_accepted_tokens=int32([1]))
    with pytest.raises(NotImplementedError, match="without initial_state"):
        recurrent_kda.checked(*layer(0, 2, 128, 128), cu_seqlens=int32([0, 2]))
    with pytest.raises(NotImplementedError, match="layout"):
        chunk_kda_fwd.checked(*layer(0, 2, 4, 4), SCALE, 64, layout="BNSD")


SIZE = 3


def normalised(vector: list[float]) -> list[float]:
    length = math.sqrt(sum(element * element for element in vector) + 1e-6)
    return [element / length for element in vector]


def step_of_decay(x: float, speed: float, bound: float | None) -> float:
    if bound is None:
        return -speed * math.log1p(math.exp(x))
    return bound / (1 + math.exp(-speed * x))


def expected(
    state: list[list[float]],
    rows: list[tuple[list[float], list[float], list[float], list[float], float]],
) -> tuple[list[list[float]], list[list[float]]]:
    """One head: ``state`` [value][key] after ``rows`` of q, k, v, log decay, beta; outputs."""
    outputs = []
    for query, key, value, decay, beta in rows:
        q, k = [element / math.sqrt(SIZE) for element in normalised(query)], normalised(key)
        state = [[row[j] * math.exp(decay[j]) for j in range(SIZE)] for row in state]
        for i, row in enumerate(state):
            error = (value[i] - sum(row[j] * k[j] for j in range(SIZE))) * beta
            state[i] = [row[j] + error * k[j] for j in range(SIZE)]
        outputs.append([sum(row[j] * q[j] for j in range(SIZE)) for row in state])
    return state, outputs


@given(
    lengths=st.lists(st.integers(0, 4), min_size=1, max_size=3),
    seed=st.integers(0, 999),
    decoding=st.booleans(),
    bound=st.sampled_from([None, -5.0]),
)
@settings(max_examples=25, deadline=None)
def test_states_and_outputs(
    lengths: list[int], seed: int, decoding: bool, bound: float | None
) -> None:
    generator = torch.Generator().manual_seed(seed)
    lengths = [min(length, 1) for length in lengths] if decoding else lengths
    tokens, rows = sum(lengths), len(lengths)
    starts = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()])
    q, k, v, raw = torch.randn(4, 1, tokens, HEADS, SIZE, generator=generator)
    beta = torch.rand(1, tokens, HEADS, generator=generator)
    rate, bias = (torch.randn(count, generator=generator) for count in (HEADS, HEADS * SIZE))
    states = torch.randn(rows + 1, HEADS, SIZE, SIZE, generator=generator)
    before = states.double().tolist()
    if decoding:
        decay = kda.fused_kda_gate(raw[0].flatten(1), rate, SIZE, bias, lower_bound=bound)[None]
        blocks = torch.arange(1, rows + 1)
        output, after = kda.fused_recurrent_kda(
            q, k, v, decay, beta, None, states, cu_seqlens=starts, ssm_state_indices=blocks
        )
        assert after is states
    else:
        output, found = kda.chunk_kda_with_fused_gate(
            q,
            k,
            v,
            raw,
            beta,
            rate.view(1, 1, HEADS, 1),
            bias,
            None,
            states[1:],
            True,
            True,
            starts,
            lower_bound=bound,
        )
        assert found is not None
        after = torch.cat([states[:1], found])
    for row in range(rows):
        for head in range(HEADS):
            inputs = []
            for token in range(int(starts[row]), int(starts[row + 1])):
                shifted = [
                    float(raw[0, token, head, j] + bias[head * SIZE + j]) for j in range(SIZE)
                ]
                steps = [step_of_decay(x, math.exp(float(rate[head])), bound) for x in shifted]
                vectors = [part[0, token, head].tolist() for part in (q, k, v)]
                inputs.append((*vectors, steps, float(beta[0, token, head])))
            state, outputs = expected(before[row + 1][head], inputs)
            assert torch.allclose(after[row + 1, head], torch.tensor(state), atol=1e-4)
            for place, values in enumerate(outputs):
                token = int(starts[row]) + place
                assert torch.allclose(output[0, token, head], torch.tensor(values), atol=1e-4)
