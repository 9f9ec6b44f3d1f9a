# SPDX-License-Identifier: Apache-2.0
"""Mamba2's state space and short convolutions, against plain loops over scalars in float64."""

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
from emulated_npu.triton_interpreter.state_space import (
    mamba_chunk_scan_combined_varlen,
    selective_state_update,
)
from tests.support.operators.operator_testing import assert_near, few, random_tensor, seeds

F32 = torch.float32
HEADS, GROUPS, SIZE, STATES, SLOTS = 4, 2, 2, 3, 9


def scan(state, x, dt, weights, B, C, z=None):  # noqa: N803
    """y of every token and the state after every token, both float64 lists.

    state: [heads][size][states]; x, z: [tokens, heads, size]; dt: [tokens, heads]; weights: the
    A, D and dt_bias of each head; B, C: [tokens, groups, states].
    """
    decay, skip, bias = weights
    state = [[list(row) for row in head] for head in state]
    results, states = [], []
    for t in range(len(x)):
        result = []
        for h in range(HEADS):
            group = h // (HEADS // GROUPS)
            step = math.log1p(math.exp(float(dt[t, h]) + float(bias[h])))
            for p in range(SIZE):
                total = float(skip[h]) * float(x[t, h, p])
                for n in range(STATES):
                    state[h][p][n] *= math.exp(float(decay[h]) * step)
                    state[h][p][n] += step * float(x[t, h, p]) * float(B[t, group, n])
                    total += state[h][p][n] * float(C[t, group, n])
                if z is not None:
                    gate = float(z[t, h, p])
                    total *= gate / (1 + math.exp(-gate))
                result.append(total)
        results.append(result)
        states.append([[list(row) for row in head] for head in state])
    return results, states


def inputs(seed, tokens):
    shapes = {
        "x": (tokens, HEADS, SIZE),
        "dt": (tokens, HEADS),
        "B": (tokens, GROUPS, STATES),
        "C": (tokens, GROUPS, STATES),
        "z": (tokens, HEADS, SIZE),
    }
    return {
        name: random_tensor(seed + i, shape, F32) for i, (name, shape) in enumerate(shapes.items())
    }


def weights_of(seed):
    """A, D and dt_bias."""
    decay, skip, bias = (random_tensor(seed + i, (HEADS,), F32) for i in (20, 21, 22))
    return -decay.abs() - 0.1, skip, bias


def chunked(lengths, size):
    """Bounds of the chunks, the request of each, and the last chunk of each request."""
    bounds, requests, last = [0], [], []
    for request, length in enumerate(lengths):
        done = 0
        while done < length:
            part = min(size, length - done)
            bounds.append(bounds[-1] + part)
            requests.append(request)
            done += part
        last.append(len(requests) - 1)
    return int32(bounds), int32(requests), int32(last)


def int32(values):
    return torch.tensor(values, dtype=torch.int32)


def begins(lengths):
    return int32([sum(lengths[:i]) for i in range(len(lengths) + 1)])


@few
@given(seeds, st.lists(st.integers(1, 6), min_size=1, max_size=3), st.booleans(), st.booleans())
def test_prompts_with_and_without_a_state(seed, lengths, has_state, gated):
    tensors, weights = inputs(seed, sum(lengths)), weights_of(seed)
    first = random_tensor(seed + 9, (len(lengths), HEADS, SIZE, STATES), F32)
    bounds, requests, last = chunked(lengths, 4)
    out = torch.empty_like(tensors["x"])
    found = mamba_chunk_scan_combined_varlen(
        tensors["x"], tensors["dt"], weights[0], tensors["B"], tensors["C"],
        chunk_size=4,
        cu_seqlens=begins(lengths),
        cu_chunk_seqlens=bounds,
        last_chunk_indices=last,
        seq_idx=requests,
        out=out,
        D=weights[1],
        z=tensors["z"] if gated else None,
        dt_bias=weights[2],
        initial_states=first if has_state else None,
        dt_softplus=True,
        state_dtype=F32,
    )  # fmt: skip
    wanted, final = [], []
    parts = zip(*(tensors[name].split(lengths) for name in ("x", "dt", "B", "C", "z")), strict=True)
    for request, (x, dt, B, C, z) in enumerate(parts):  # noqa: N806
        state = (first[request] if has_state else torch.zeros_like(first[request])).tolist()
        results, states = scan(state, x, dt, weights, B, C, z if gated else None)
        wanted += results
        final.append(states[-1])
    assert_near(out.flatten(1), torch.tensor(wanted, dtype=torch.float64), 1e-5)
    assert_near(found, torch.tensor(final, dtype=torch.float64), 1e-5)


@few
@given(seeds, st.integers(1, 3), st.booleans(), st.booleans())
def test_one_token_each(seed, count, gated, to_another_block):
    tensors, (decay, skip, bias) = inputs(seed, count), weights_of(seed)
    states = random_tensor(seed + 9, (SLOTS, HEADS, SIZE, STATES), F32)
    before = states.clone()
    read, written = int32([7, 2, 5][:count]), int32([1, 2, 3][:count])
    out = torch.empty_like(tensors["x"])
    call(
        states,
        tensors,
        (decay, skip, bias),
        out,
        gated,
        read,
        written if to_another_block else None,
    )
    for request in range(count):
        x, dt, B, C, z = (  # noqa: N806
            tensors[name][request : request + 1] for name in ("x", "dt", "B", "C", "z")
        )
        source = int(read[request])
        target = int(written[request]) if to_another_block else source
        wanted, after = scan(
            before[source].tolist(), x, dt, (decay, skip, bias), B, C, z if gated else None
        )
        assert_near(out[request].flatten(), torch.tensor(wanted[0], dtype=torch.float64), 1e-5)
        assert_near(states[target], torch.tensor(after[0], dtype=torch.float64), 1e-5)


@few
@given(seeds, st.lists(st.tuples(st.integers(1, 3), st.integers(0, 3)), min_size=1, max_size=2))
def test_a_verification_keeps_the_state_after_every_token(seed, requests):
    """Each request starts from the column of the last accepted token; some verify no token."""
    lengths = [length for _, length in requests]
    tensors, weights = inputs(seed, sum(lengths)), weights_of(seed)
    states = random_tensor(seed + 9, (SLOTS, HEADS, SIZE, STATES), F32)
    before = states.clone()
    columns = int32([[1, 2, 3], [4, 5, 6]][: len(requests)])
    accepted = int32([count for count, _ in requests])
    out = torch.zeros_like(tensors["x"])
    call(states, tensors, weights, out, False, columns, None, accepted, begins(lengths))
    untouched = set(range(SLOTS))
    parts = zip(*(tensors[name].split(lengths) for name in ("x", "dt", "B", "C")), strict=True)
    for request, (x, dt, B, C) in enumerate(parts):  # noqa: N806
        source = int(columns[request, accepted[request] - 1])
        wanted, after = scan(before[source].tolist(), x, dt, weights, B, C)
        start = sum(lengths[:request])
        for token in range(lengths[request]):
            block = int(columns[request, token])
            untouched.discard(block)
            expected = torch.tensor(wanted[token], dtype=torch.float64)
            assert_near(out[start + token].flatten(), expected, 1e-5)
            assert_near(states[block], torch.tensor(after[token], dtype=torch.float64), 1e-5)
    left = sorted(untouched)
    assert torch.equal(states[left], before[left])


def call(states, tensors, weights, out, gated, read, written, accepted=None, starts=None):
    """As vLLM's mixer calls it: everything per head is spread over sizes and states."""
    decay, skip, bias = weights
    selective_state_update(
        states,
        tensors["x"],
        tensors["dt"].unsqueeze(-1).expand(-1, -1, SIZE),
        decay[:, None, None].expand(-1, SIZE, STATES),
        tensors["B"],
        tensors["C"],
        D=skip[:, None].expand(-1, SIZE),
        dt_bias=bias[:, None].expand(-1, SIZE),
        z=tensors["z"] if gated else None,
        dt_softplus=True,
        state_batch_indices=read,
        dst_state_batch_indices=written,
        out=out,
        num_accepted_tokens=accepted,
        cu_seqlens=starts,
    )


def test_the_null_block_is_read_as_zeros_and_not_written():
    tensors, weights = inputs(3, 2), weights_of(3)
    states = torch.ones(SLOTS, HEADS, SIZE, STATES)
    out = torch.empty_like(tensors["x"])
    call(states, tensors, weights, out, False, int32([0, 2]), None)
    assert (states[0] == 1).all()
    assert (states[2] != 1).any()
    x, dt, B, C = (tensors[name][:1] for name in ("x", "dt", "B", "C"))  # noqa: N806
    wanted, _ = scan(torch.zeros(HEADS, SIZE, STATES).tolist(), x, dt, weights, B, C)
    assert_near(out[0].flatten(), torch.tensor(wanted[0], dtype=torch.float64), 1e-5)


def test_scans_that_are_refused():
    tensors, weights = inputs(0, 4), weights_of(0)

    def scanned(**changed):
        fields = {
            "cu_seqlens": int32([0, 4]), "cu_chunk_seqlens": int32([0, 3, 4]),
            "last_chunk_indices": int32([1]), "seq_idx": int32([0, 0]), "chunk_size": 3,
            "out": torch.empty_like(tensors["x"]), **changed,
        }  # fmt: skip
        x, dt, B, C = (tensors[name] for name in ("x", "dt", "B", "C"))  # noqa: N806
        return mamba_chunk_scan_combined_varlen(x, dt, weights[0], B, C, **fields)

    assert scanned().shape == (1, HEADS, SIZE, STATES)
    with pytest.raises(NotImplementedError, match="after every chunk"):
        scanned(return_intermediate_states=True)
    for changed in (
        {"chunk_size": 2},
        {"seq_idx": int32([0, 1])},
        {"last_chunk_indices": int32([0])},
        {"cu_chunk_seqlens": int32([0, 3, 3])},
    ):
        with pytest.raises(ValueError, match="do not divide the requests that end at"):
            scanned(**changed)
    with pytest.raises(NotImplementedError, match="state_batch_indices and out"):
        call(torch.ones(SLOTS, HEADS, SIZE, STATES), tensors, weights, None, False, None, None)


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
