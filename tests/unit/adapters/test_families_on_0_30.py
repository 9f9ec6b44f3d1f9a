# SPDX-License-Identifier: Apache-2.0
"""Families that vllm-ascend 0.30.0rc2 does not serve right are refused before the start."""

import re
from types import SimpleNamespace

import pytest
import torch

from benchmarks.matrix.refusals import known_refusal
from mkv_ascend.adapters.vllm_ascend_0_30.common.early_checks import families


def model(name, dtype=torch.bfloat16):
    return SimpleNamespace(model="/models/given", architectures=[name], dtype=dtype)


DENSE = model("LlamaForCausalLM", torch.float32)
LONGCAT = model("LongcatFlashForCausalLM")
STEP = model("Step3p5ForCausalLM", torch.float32)


def reason(target, draft=None, v2=False):
    speculative = None
    if draft is not None:
        method = "mtp" if "MTP" in draft.architectures[0] else "draft_model"
        speculative = SimpleNamespace(draft_model_config=draft, method=method)
    config = SimpleNamespace(
        model_config=target, speculative_config=speculative, use_v2_model_runner=v2
    )
    return families.why_not_served(config)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (LONGCAT, "/models/given is a LongCat-Flash: .* Possible: vllm-ascend 0.23.0"),
        (model("LongcatFlashNgramForCausalLM"), "is a LongCat-Flash"),
        (STEP, r"is a Step-3.5 in float32: .* Possible: --dtype bfloat16"),
        (model("Step3p7ForConditionalGeneration", torch.float16), "is a Step-3.5 in float16"),
        (model("ExaoneMoEForCausalLM"), "of the first version, .* Possible: K-EXAONE 2.0"),
    ],
)
@pytest.mark.parametrize("place", ["target", "draft"])
def test_a_family_is_refused_with_what_is_possible(found, said, place):
    text = reason(found) if place == "target" else reason(DENSE, found)
    assert text is not None
    (line,) = text.splitlines()
    assert re.search(said, line)
    assert known_refusal(text) is not None


def test_a_minimax_m2_is_refused_as_a_draft_alone():
    found = model("MiniMaxM2ForCausalLM")
    assert "a MiniMax-M2" in (reason(DENSE, found) or "")
    assert reason(found, DENSE) is reason(found, model("Eagle3MTP")) is None
    config = SimpleNamespace(
        model_config=found,
        speculative_config=SimpleNamespace(draft_model_config=found, method="ngram"),
        use_v2_model_runner=False,
    )
    assert families.why_not_served(config) is None


def test_a_checkpoint_that_names_a_class_which_vllm_has_is_served():
    both = SimpleNamespace(
        model="m", architectures=["ExaoneMoEForCausalLM", "ExaoneMoeForCausalLM"]
    )
    both.dtype = torch.bfloat16
    assert reason(both) is None


@pytest.mark.parametrize("draft", [None, DENSE])
@pytest.mark.parametrize("target", [DENSE, model("Step3p5ForCausalLM")])
def test_others_and_step_in_bfloat16_are_served(target, draft):
    assert reason(target, draft) is None
    speculative = SimpleNamespace(draft_model_config=None)
    config = SimpleNamespace(model_config=target, speculative_config=speculative)
    assert families.why_not_served(config) is None


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
    monkeypatch.setattr(families, "HAS_TRITON", triton)
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
    monkeypatch.setattr(families, "HAS_TRITON", True)
    registered = SimpleNamespace(class_name="AscendEagle3LlamaForCausalLM")
    monkeypatch.setitem(families.ModelRegistry.models, "Eagle3Qwen3vlForCausalLM", registered)
    head = model("Eagle3Qwen3vlForCausalLM")
    head.hf_text_config = SimpleNamespace(rope_parameters={"mrope_interleaved": True})
    assert "rotates by three axes in turns" in reason(DENSE, head)
