# SPDX-License-Identifier: Apache-2.0
"""Mamba2 layers and short convolutions on 0.30.0rc2 where vLLM finds Triton, as on an NPU."""

import itertools

import pytest
import torch
from vllm.model_executor.layers.mamba import mamba_mixer2, short_conv
from vllm.v1.attention.backends.registry import MambaAttentionBackendEnum
from vllm.v1.kv_cache_interface import MambaSpec

from tests.support import hosts
from tests.support.pairs import (
    run_judged,
    scenario,
)

hosts.skip_module_unless("vllm_ascend_0_30", "0.23.0 has a Triton kernel for this update")

TRITON = {"EMULATED_NPU_TRITON": "1"}
GRAPHS = {"graphs": "FULL_DECODE_ONLY", "capture_sizes": (4, 8, 16)}


@pytest.fixture
def with_triton(monkeypatch):
    """The module of the patch, as where vLLM finds Triton."""
    module = hosts.module("patches.recurrent")
    monkeypatch.setattr(module, "HAS_TRITON", True)
    return module


def windows(shape, drafts=0):
    return MambaSpec(
        128,
        (shape,),
        (torch.float32,),
        mamba_type=MambaAttentionBackendEnum.SHORT_CONV,
        num_speculative_blocks=drafts,
    )


@pytest.mark.nightly("other cases of it stay", cases=["*-eager", "*-lfm2-*", "granite4-*"])
@pytest.mark.parametrize("graphs", [{}, GRAPHS], ids=["eager", "graphs"])
@pytest.mark.parametrize(
    ("target", "draft"),
    [("lfm2", "llama_draft"), ("granite4", "llama_draft"), ("llama_target", "lfm2")],
)
def test_windows_go_back_to_what_was_accepted(target, draft, graphs):
    """As targets, whose rejected tokens leave the window, and as a draft."""
    case = scenario(target, draft, engine={"max_num_seqs": 4}, environment=TRITON, **graphs)
    result = run_judged(case)
    assert 20 < result.num_accepted < result.num_draft_tokens


@pytest.mark.parametrize(
    ("rows", "channels", "drafts", "is_served"),
    [(3, 64, 0, True), (6, 64, 3, True), (6, 64, 0, False), (7, 64, 3, False), (3, 72, 0, False)],
)
def test_sizes_that_the_operator_does_not_take_are_refused(
    with_triton, rows, channels, drafts, is_served
):
    specs = {"layer": windows((rows, channels), drafts)}
    if is_served:
        with_triton.refuse_other_states(specs, torch.float32)
        return
    with pytest.raises(ValueError, match=r"The convolution of layer has .* Choose another model"):
        with_triton.refuse_other_states(specs, torch.float32)


def test_windows_in_another_dtype_than_the_model_are_refused(with_triton):
    with pytest.raises(ValueError, match=r"--mamba-cache-dtype asks for windows in torch.float32"):
        with_triton.refuse_other_states({"layer": windows((3, 64))}, torch.bfloat16)


@pytest.mark.nightly("near to tests that stay")
def test_other_updates_and_windows_with_channels_first_are_not_judged(monkeypatch, with_triton):
    """Those with channels first have a message of their own (``common/patches/recurrent.py``)."""
    specs = {"layer": windows((7, 72))}
    with monkeypatch.context() as without:
        without.setattr(with_triton, "HAS_TRITON", False)
        with_triton.refuse_other_states(specs, torch.bfloat16)
    monkeypatch.setattr(with_triton, "is_conv_state_dim_first", lambda: True)
    with_triton.refuse_other_states(specs, torch.bfloat16)


@pytest.mark.parametrize("module", [short_conv, mamba_mixer2])
def test_an_update_is_that_of_plain_loops(monkeypatch, with_triton, module):
    """In place of what vllm-ascend puts there; the last request is padding in the null block."""
    # Not with this file: the test runs on 0.30.0rc2 alone, and 0.23.0 has no such module.
    from vllm_ascend.ops.causal_conv1d import causal_conv1d_update as host_update

    monkeypatch.setattr(module, "causal_conv1d_update", host_update)
    with_triton.UPDATES.apply()
    torch.manual_seed(0)
    width, channels, lengths, accepted, blocks = 4, 32, (4, 1, 3, 2), (1, 3, 4, 1), (3, 1, 2, 0)
    states = torch.randn(5, width - 1 + max(lengths) - 1, channels)
    x, weight = torch.randn(sum(lengths), channels), torch.randn(channels, width)
    expected, kept = by_loops(x, states, weight, lengths, accepted, blocks)
    starts = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32)
    table = torch.tensor([[block, 4, 4, 4] for block in blocks], dtype=torch.int32)
    found = states.npu()
    output = module.causal_conv1d_update(
        x.npu(),
        found.transpose(-1, -2),
        weight.npu(),
        None,
        None,
        conv_state_indices=table.npu(),
        num_accepted_tokens=torch.tensor(accepted, dtype=torch.int32).npu(),
        query_start_loc=starts.npu(),
        max_query_len=max(lengths),
    )
    used = sum(lengths[:-1])
    torch.testing.assert_close(output.cpu()[:used], expected[:used])
    # Of the next step only the tokens from here on can be accepted.
    for block, length in zip(blocks[:-1], lengths[:-1], strict=True):
        rows = width - 2 + length
        torch.testing.assert_close(found.cpu()[block][:rows], kept[block][:rows])
    torch.testing.assert_close(found.cpu()[[0, 4]], states[[0, 4]])


def by_loops(x, states, weight, lengths, accepted, blocks):
    """Outputs [tokens, channels], and the states afterwards: the last inputs of each request."""
    channels, width = weight.shape
    outputs, kept, start = torch.zeros_like(x), states.clone(), 0
    for length, number, block in zip(lengths, accepted, blocks, strict=True):
        inputs = [states[block][number - 1 + row] for row in range(width - 1)]
        inputs += [x[start + token] for token in range(length)]
        for token in range(length):
            for channel in range(channels):
                outputs[start + token, channel] = sum(
                    weight[channel, tap] * inputs[token + tap][channel] for tap in range(width)
                )
        for row, value in enumerate(inputs[1:]):
            kept[block][row] = value
        start += length
    return outputs, kept
