# SPDX-License-Identifier: Apache-2.0
"""Families that vllm-ascend 0.30.0rc2 does not serve right are refused before the start."""

from types import SimpleNamespace

import pytest
import torch

from benchmarks.matrix.refusals import known_refusal
from mkv_ascend.adapters.vllm_ascend_0_30.common import start_checks
from mkv_ascend.adapters.vllm_ascend_0_30.host import FAMILIES


def model(name, dtype=torch.bfloat16):
    return SimpleNamespace(model="/models/given", architectures=[name], dtype=dtype)


DENSE = model("LlamaForCausalLM", torch.float32)


def reason(target, draft=None, v2=False):
    speculative = None if draft is None else SimpleNamespace(draft_model_config=draft)
    config = SimpleNamespace(
        model_config=target, speculative_config=speculative, use_v2_model_runner=v2
    )
    return start_checks.why_not_served(config)


def unserved(name, dtype="bfloat16", drafts=False):
    return [found for found in FAMILIES if found.is_of([name], dtype, drafts=drafts)]


@pytest.mark.parametrize(
    ("name", "dtype", "said"),
    [
        ("LongcatFlashForCausalLM", "bfloat16", "a LongCat-Flash: "),
        ("LongcatFlashNgramForCausalLM", "bfloat16", "a LongCat-Flash"),
        ("Step3p5ForCausalLM", "float32", "a Step-3.5 in "),
        ("Step3p7ForConditionalGeneration", "float16", "a Step-3.5 in "),
        ("ExaoneMoEForCausalLM", "bfloat16", "of the first version"),
    ],
)
def test_a_family_is_refused_with_what_is_possible(name, dtype, said):
    (found,) = unserved(name, dtype)
    assert said in found.why
    assert found.possible
    assert known_refusal(f"MODEL is {found.why.format(dtype=dtype)}") is not None


@pytest.mark.parametrize("drafts", [False, True])
def test_prompts_that_see_what_is_behind_are_refused_in_either_role(drafts):
    """Drawn pairs gave wrong tokens, with the plugin and without, or a request that never ends."""
    (found,) = unserved("HrmTextForCausalLM", drafts=drafts)
    assert "never schedules a prompt longer than a step" in found.why


def test_others_and_step_in_bfloat16_are_served():
    assert not unserved("Step3p5ForCausalLM")
    assert not unserved("LlamaForCausalLM")
    assert not unserved("MiniMaxM2ForCausalLM")
    assert unserved("MiniMaxM2ForCausalLM", drafts=True)
    both = ["ExaoneMoEForCausalLM", "ExaoneMoeForCausalLM"]
    assert not any(found.is_of(both, "bfloat16", drafts=False) for found in FAMILIES)


@pytest.mark.parametrize(
    ("changed", "v2", "triton", "refused"),
    [
        ({}, False, True, True),
        ({"architectures": ["Eagle3LlamaForCausalLM"]}, False, True, True),
        ({}, True, True, False),
        ({}, False, False, False),
        ({"mrope_interleaved": False}, False, True, False),
        # Its layers are Qwen3.5's, which call another kernel.
        ({"architectures": ["Qwen3_5MTP"]}, False, True, False),
    ],
)
def test_a_head_whose_axes_take_turns(changed, v2, triton, refused, monkeypatch):
    monkeypatch.setattr(start_checks, "HAS_TRITON", triton)
    head = model("Eagle3Qwen3vlForCausalLM")
    head.architectures = changed.get("architectures", head.architectures)
    rope = {"mrope_interleaved": True, "mrope_section": [24, 20, 20], **changed}
    head.hf_text_config = SimpleNamespace(rope_parameters=rope)
    text = reason(DENSE, head, v2)
    assert (text is not None) == refused
    if text:
        assert "Possible: model runner V2" in text


def test_a_head_whose_class_vllm_ascends_plugin_has_replaced(monkeypatch):
    """In an engine the plugin has registered a class of its own in the place of vLLM's."""
    monkeypatch.setattr(start_checks, "HAS_TRITON", True)
    registered = SimpleNamespace(class_name="AscendEagle3LlamaForCausalLM")
    monkeypatch.setitem(start_checks.ModelRegistry.models, "Eagle3Qwen3vlForCausalLM", registered)
    head = model("Eagle3Qwen3vlForCausalLM")
    head.hf_text_config = SimpleNamespace(rope_parameters={"mrope_interleaved": True})
    assert "rotates by three axes in turns" in reason(DENSE, head)
