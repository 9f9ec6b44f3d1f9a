# SPDX-License-Identifier: Apache-2.0
"""Mamba2 layers and short convolutions on 0.30.0rc2 where vLLM finds Triton, as on an NPU."""

import functools

import pytest
import torch
from vllm.v1.attention.backends.registry import MambaAttentionBackendEnum
from vllm.v1.kv_cache_interface import MambaSpec

from tests.support import engine, hosts
from tests.support.pairs import (
    assert_drafts_are_the_drafts_own,
    assert_greedy_tokens_of_reference,
    scenario,
)

hosts.skip_module_unless("vllm_ascend_0_30", "0.23.0 has a Triton kernel for this update")

TRITON = {"EMULATED_NPU_TRITON": "1"}
GRAPHS = {"graphs": "FULL_DECODE_ONLY", "capture_sizes": (4, 8, 16)}


@pytest.mark.parametrize("graphs", [{}, GRAPHS], ids=["eager", "graphs"])
@pytest.mark.parametrize(
    ("target", "draft"),
    [("lfm2", "llama_draft"), ("granite4", "llama_draft"), ("llama_target", "lfm2")],
)
def test_windows_go_back_to_what_was_accepted(target, draft, graphs):
    """As targets, whose rejected tokens leave the window, and as a draft."""
    case = scenario(target, draft, engine={"max_num_seqs": 4}, environment=TRITON, **graphs)
    result = engine.run(case)
    assert_greedy_tokens_of_reference(case, result)
    assert_drafts_are_the_drafts_own(case, result)
    assert 20 < result.num_accepted < result.num_draft_tokens


@pytest.mark.parametrize(
    ("rows", "channels", "drafts", "is_served"),
    [(3, 64, 0, True), (6, 64, 3, True), (6, 64, 0, False), (7, 64, 3, False), (3, 72, 0, False)],
)
def test_sizes_that_the_operator_does_not_take_are_refused(
    monkeypatch, rows, channels, drafts, is_served
):
    convolution_update = hosts.module("patches.convolution_update")
    spec = MambaSpec(
        128,
        ((rows, channels),),
        (torch.float32,),
        mamba_type=MambaAttentionBackendEnum.SHORT_CONV,
        num_speculative_blocks=drafts,
    )
    refuse = functools.partial(convolution_update.refuse_other_sizes, {"layer": spec})
    monkeypatch.setattr(convolution_update, "HAS_TRITON", False)
    refuse()
    monkeypatch.setattr(convolution_update, "HAS_TRITON", True)
    if is_served:
        refuse()
        return
    with pytest.raises(ValueError, match=r"The convolution of layer has .* Choose another model"):
        refuse()
