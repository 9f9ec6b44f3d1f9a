# SPDX-License-Identifier: Apache-2.0
"""The kernels that stand for Kimi delta attention, against scalar loops in float64."""

from __future__ import annotations

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from emulated_npu.triton_interpreter import replacements_kda as kda

HEADS, SIZE = 2, 3


def unit(vector: list[float]) -> list[float]:
    length = math.sqrt(sum(element * element for element in vector) + 1e-6)
    return [element / length for element in vector]


def log_decay(x: float, speed: float, bound: float | None) -> float:
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
        q, k = [element / math.sqrt(SIZE) for element in unit(query)], unit(key)
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
                steps = [log_decay(x, math.exp(float(rate[head])), bound) for x in shifted]
                vectors = [part[0, token, head].tolist() for part in (q, k, v)]
                inputs.append((*vectors, steps, float(beta[0, token, head])))
            state, outputs = expected(before[row + 1][head], inputs)
            assert torch.allclose(after[row + 1, head], torch.tensor(state), atol=1e-4)
            for place, values in enumerate(outputs):
                token = int(starts[row]) + place
                assert torch.allclose(output[0, token, head], torch.tensor(values), atol=1e-4)
