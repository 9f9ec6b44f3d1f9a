# SPDX-License-Identifier: Apache-2.0
"""Mamba2's state space, against the recurrence in plain loops over scalars in float64."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from emulated_npu.triton_interpreter.state_space import (
    mamba_chunk_scan_combined_varlen,
    selective_state_update,
)
from tests.support.operators.operator_testing import assert_near, few, random_tensor, seeds

F32 = torch.float32
HEADS, GROUPS, SIZE, STATES, BLOCKS = 4, 2, 2, 3, 9


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
    states = random_tensor(seed + 9, (BLOCKS, HEADS, SIZE, STATES), F32)
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
    states = random_tensor(seed + 9, (BLOCKS, HEADS, SIZE, STATES), F32)
    before = states.clone()
    columns = int32([[1, 2, 3], [4, 5, 6]][: len(requests)])
    accepted = int32([count for count, _ in requests])
    out = torch.zeros_like(tensors["x"])
    call(states, tensors, weights, out, False, columns, None, accepted, begins(lengths))
    untouched = set(range(BLOCKS))
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
    states = torch.ones(BLOCKS, HEADS, SIZE, STATES)
    out = torch.empty_like(tensors["x"])
    call(states, tensors, weights, out, False, int32([0, 2]), None)
    assert (states[0] == 1).all()
    assert (states[2] != 1).any()
    x, dt, B, C = (tensors[name][:1] for name in ("x", "dt", "B", "C"))  # noqa: N806
    wanted, _ = scan(torch.zeros(HEADS, SIZE, STATES).tolist(), x, dt, weights, B, C)
    assert_near(out[0].flatten(), torch.tensor(wanted[0], dtype=torch.float64), 1e-5)


def test_what_is_refused():
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
        call(torch.ones(BLOCKS, HEADS, SIZE, STATES), tensors, weights, None, False, None, None)
