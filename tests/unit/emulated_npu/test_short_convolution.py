# SPDX-License-Identifier: Apache-2.0
"""The convolution of Mamba2 and short-conv layers, against plain loops over all inputs so far."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from emulated_npu.triton_interpreter.short_convolution import (
    NULL_BLOCK_ID,
    PAD_SLOT_ID,
    causal_conv1d_fn,
    causal_conv1d_update,
    causal_conv1d_update_npu,
)
from tests.support.operators.operator_testing import assert_near, few, random_tensor, seeds

F32 = torch.float32
BLOCKS, CHANNELS = 6, 3


def convolved(history, first, weight, bias, silu):
    """Outputs of history[first:] ([tokens, channels]); what lies before the history is zero."""
    width = weight.shape[1]
    rows = []
    for t in range(first, len(history)):
        row = []
        for c in range(CHANNELS):
            total = 0.0 if bias is None else float(bias[c])
            for w in range(width):
                source = t - width + 1 + w
                if source >= 0:
                    total += float(weight[c, w]) * float(history[source][c])
            row.append(total / (1 + math.exp(-total)) if silu else total)
        rows.append(row)
    return torch.tensor(rows, dtype=torch.float64).reshape(-1, CHANNELS)


def states_of(rows):
    """[blocks, channels, rows] as layers have it: a transposed view of [blocks, rows, channels]."""
    return torch.full((BLOCKS, rows, CHANNELS), 7.0).transpose(1, 2)


def int32(values):
    return torch.tensor(values, dtype=torch.int32)


def begins(lengths):
    return int32([sum(lengths[:i]) for i in range(len(lengths) + 1)])


chunks = st.lists(st.lists(st.integers(0, 5), min_size=2, max_size=2), min_size=1, max_size=3)


@few
@given(seeds, chunks, st.booleans(), st.booleans(), st.sampled_from([2, 3, 4]))
def test_prompts_in_two_chunks_and_a_token_after_them(seed, lengths, silu, has_bias, width):
    """The second chunk and the token take from the states what they need of the first."""
    weight = random_tensor(seed, (CHANNELS, width), F32)
    bias = random_tensor(seed + 1, (CHANNELS,), F32) if has_bias else None
    activation = "silu" if silu else None
    blocks = [5, 1, 3][: len(lengths)]
    states = states_of(width)  # a row more than is needed
    histories = [torch.zeros(0, CHANNELS) for _ in lengths]
    for chunk in (0, 1):
        sizes = [of_request[chunk] for of_request in lengths]
        x = random_tensor(seed + 2 + chunk, (sum(sizes), CHANNELS), F32)
        begun = torch.tensor([len(history) > 0 for history in histories])
        found = causal_conv1d_fn(
            x.t(), weight, bias, states, begins(sizes), int32(blocks), begun, activation
        )
        wanted = []
        for request, part in enumerate(x.split(sizes)):
            first = len(histories[request])
            histories[request] = torch.cat((histories[request], part))
            wanted.append(convolved(histories[request], first, weight, bias, silu))
        assert_near(found.t(), torch.cat(wanted), 1e-5)
    going_on = [request for request, history in enumerate(histories) if len(history)]
    x = random_tensor(seed + 4, (len(going_on), CHANNELS), F32)
    indices = int32([blocks[request] for request in going_on])
    found = causal_conv1d_update_npu(x, states, weight, bias, activation, indices)
    for row, request in enumerate(going_on):
        history = torch.cat((histories[request], x[row : row + 1]))
        wanted = convolved(history, len(history) - 1, weight, bias, silu)
        assert_near(found[row : row + 1], wanted, 1e-5)
    assert (states[[0, 2, 4]] == 7).all()


accepted_counts = st.lists(
    st.lists(st.integers(1, 4), min_size=1, max_size=4), min_size=1, max_size=3
)


@few
@given(seeds, accepted_counts, st.booleans(), st.sampled_from([2, 3, 4]))
def test_any_number_of_tokens_may_be_accepted_after_each_verification(seed, counts, silu, width):
    """Requests verify up to 4 tokens a step, accept some, and go on from those."""
    weight, most = random_tensor(seed, (CHANNELS, width), F32), 4
    states = states_of(width - 1 + most - 1)
    activation = "silu" if silu else None
    blocks = [5, 1, 3][: len(counts)]
    histories = [random_tensor(seed + i, (2, CHANNELS), F32) for i in range(len(counts))]
    causal_conv1d_fn(
        torch.cat(histories).t(), weight, None, states, begins([2] * len(counts)), int32(blocks)
    )
    accepted = [1] * len(counts)
    for step in range(max(map(len, counts))):
        # Who accepts n tokens has verified at least n; the number changes between steps.
        taken = [of_request[step % len(of_request)] for of_request in counts]
        sizes = [max(n, 1 + (seed + step) % most) for n in taken]
        x = random_tensor(seed + 9 + step, (sum(sizes), CHANNELS), F32)
        columns = torch.stack([int32(blocks), int32([0] * len(blocks))], dim=1)
        found = causal_conv1d_update_npu(
            x, states, weight, None, activation, columns, int32(accepted), begins(sizes), most
        )
        wanted = []
        for request, part in enumerate(x.split(sizes)):
            tried = torch.cat((histories[request], part))
            wanted.append(convolved(tried, len(histories[request]), weight, None, silu))
            histories[request] = tried[: len(histories[request]) + taken[request]]
        assert_near(found, torch.cat(wanted), 1e-5)
        accepted = taken


def test_padding_is_left_alone():
    weight, states = torch.ones(CHANNELS, 2), states_of(1)
    x = torch.ones(2, CHANNELS)
    blocks = int32([PAD_SLOT_ID, 2])
    found = causal_conv1d_update_npu(x, states, weight, None, None, blocks)
    assert found.tolist() == [[1.0] * CHANNELS, [8.0] * CHANNELS]
    found = causal_conv1d_update(x, states, weight, None, None, int32([NULL_BLOCK_ID, 3]))
    assert found.tolist() == [[1.0] * CHANNELS, [8.0] * CHANNELS]
    found = causal_conv1d_fn(
        x.t(), weight, None, states, int32([0, 1, 2]), int32([NULL_BLOCK_ID, PAD_SLOT_ID])
    )
    assert found.tolist() == [[0.0] * 2] * CHANNELS
    assert (states[[0, 1, 4, 5]] == 7).all()


def test_what_is_refused():
    x, weight = torch.ones(2, CHANNELS), torch.ones(CHANNELS, 4)
    blocks, starts = int32([1]), int32([0, 2])
    with pytest.raises(NotImplementedError, match="block_idx_last_scheduled_token"):
        causal_conv1d_fn(
            x.t(), weight, None, states_of(3), starts, blocks, block_idx_last_scheduled_token=blocks
        )
    with pytest.raises(NotImplementedError, match="together, or neither"):
        causal_conv1d_update_npu(x, states_of(3), weight, None, None, blocks, None, starts)
    with pytest.raises(NotImplementedError, match="3 dimensions"):
        causal_conv1d_update_npu(x.unsqueeze(2), states_of(3), weight, None, None, blocks)
    with pytest.raises(ValueError, match="would write to a copy"):
        causal_conv1d_update_npu(x[:1], states_of(3).contiguous(), weight, None, None, blocks)
    with pytest.raises(ValueError, match="has 3 rows; 2 tokens after 1 accepted"):
        causal_conv1d_update_npu(x, states_of(3), weight, None, None, blocks, int32([1]), starts)
    with pytest.raises(ValueError, match="at least 1 is accepted"):
        causal_conv1d_update_npu(x, states_of(5), weight, None, None, blocks, int32([0]), starts)
