# SPDX-License-Identifier: Apache-2.0
"""Operators of fla_npu on npu tensors: states in pages, in place, at once and in graphs."""

from __future__ import annotations

import itertools

import torch
from fla_npu.ops.ascendc import causal_conv1d_update, recurrent_gated_delta_rule

from tests.emulated.device.graph_helpers import captured
from tests.support.operators.recurrent_reference import convolved, int32, layer_inputs, recurrence

BF16 = torch.bfloat16
BLOCKS, CHANNELS, WIDTH = 4, 16, 4
GAP = 32
"""Numbers between two states."""


def states_in_pages(*shape):
    """npu states [blocks, *shape] that lie apart, and the pages they lie in."""
    size = torch.Size(shape).numel()
    pages = torch.randn(BLOCKS, size + GAP).to(BF16).npu()
    return pages[:, :size].view(BLOCKS, *shape), pages


def test_a_convolution_in_a_graph():
    """A replay takes the inputs, blocks and states of today, and writes where it was told to."""
    states, pages = states_in_pages(WIDTH - 1, CHANNELS)
    weight = torch.randn(WIDTH, CHANNELS).to(BF16)
    filters = weight.npu()
    x, out = (torch.zeros(3, CHANNELS).to(BF16).npu() for _ in range(2))
    blocks, starts = int32([0, 0, 0]).npu(), int32([0, 1, 2, 3]).npu()
    before = pages.cpu()
    graph, result = captured(
        lambda: causal_conv1d_update(
            x, states, filters, activation="silu", conv_state_indices=blocks,
            query_start_loc=starts, max_query_len=1, out=out,
        )
    )  # fmt: skip
    assert result is out
    assert torch.equal(pages.cpu(), before), "the capture wrote"
    for chosen in ([3, 1, 0], [1, 2, 3]):
        old, given = states.cpu(), torch.randn(3, CHANNELS).to(BF16)
        x.copy_(given)
        blocks.copy_(int32(chosen))
        graph.replay()
        for request, block in enumerate(chosen):
            if not block:
                continue
            tokens = torch.cat((old[block], given[request : request + 1]))
            wanted = convolved(tokens, weight, None, silu=True)
            torch.testing.assert_close(out[request].cpu().double(), wanted[0], rtol=0.02, atol=0.02)
            assert torch.equal(states[block].cpu(), tokens[1:])
    assert torch.equal(pages[:, -GAP:].cpu(), before[:, -GAP:])


def test_a_delta_rule_at_once():
    inputs = layer_inputs(5, 3)
    states, pages = states_in_pages(2, 3, 4)
    before, lengths = pages.cpu(), [2, 1]
    start = states.cpu()
    output = recurrent_gated_delta_rule(
        **{name: part.npu() for name, part in inputs.items()}, state=states, scale=0.5,
        actual_seq_lengths=int32([0, *lengths]).npu(), ssm_state_indices=int32([2, 0, 3]).npu(),
        num_accepted_tokens=int32([1, 1]).npu(),
    )  # fmt: skip
    assert output.device.type == "npu"
    names = ("query", "key", "value", "g", "beta")
    for (first, last), blocks in zip(itertools.pairwise([0, 2, 3]), ([2, 0], [3]), strict=True):
        ordered = (inputs[name][first:last] for name in names)
        after, wanted = recurrence(start[blocks[0]], *ordered, 0.5)
        torch.testing.assert_close(output[first:last].cpu().double(), wanted, rtol=0.03, atol=0.03)
        for block, state in zip(blocks, after, strict=True):
            torch.testing.assert_close(states[block].cpu().double(), state, rtol=0.03, atol=0.03)
    assert torch.equal(states[1].cpu(), start[1])
    assert torch.equal(pages[:, -GAP:].cpu(), before[:, -GAP:])
