# SPDX-License-Identifier: Apache-2.0
"""A program that calls vLLM is refused what the command is refused, before any worker starts.

``tests/unit/rules`` judges the rules by facts; here facts are those of configurations that vLLM
made.
"""

import dataclasses

import pytest
import vllm_ascend.ops  # noqa: F401 - first of vllm-ascend: its modules import each other in circles
from vllm.config import VllmConfig
from vllm.engine.arg_utils import EngineArgs

from mkv_ascend.adapters.common.attention import selection_inputs
from mkv_ascend.adapters.common.judge import early_check, facts_of_config
from mkv_ascend.attention.selection import SelectionError
from mkv_ascend.rules.refusal import RefusedError
from tests.support import hosts
from tests.support.tiny_models import model_directory

pytestmark = pytest.mark.core


def draft(name="llama_draft", tokens=3, **more):
    return {"model": str(model_directory(name)), "num_speculative_tokens": tokens, **more}


def configured(target="llama_target", ours=None, **asked) -> VllmConfig:
    asked = {"dtype": "bfloat16", "skip_tokenizer_init": True, "max_model_len": 512, **asked}
    asked["additional_config"] = {"mkv_ascend": ours or {}, **asked.get("additional_config", {})}
    return EngineArgs(model=str(model_directory(target)), **asked).create_engine_config()


def refused(*codes, **asked):
    """Each code is in what is said."""
    with pytest.raises(ValueError, match="this cannot be served") as found:
        configured(**asked)
    for code in codes:
        assert f"[{code}]" in str(found.value)
    return str(found.value)


def test_what_is_served_is_not_refused():
    configured()
    configured(speculative_config=draft())
    configured(speculative_config=draft("llama_eagle3", method="eagle3"))
    configured("qwen3_next", speculative_config=draft("qwen3_next_draft"))


def test_several_refusals_are_told_at_once():
    refused(
        "tokens-per-step",
        "draft-batch",
        speculative_config=draft(tokens=16, disable_padded_drafter_batch=True),
    )


@pytest.mark.parametrize("method", ["ngram", None])
def test_options_of_a_draft_without_one_are_refused(method):
    """Of methods without a model vLLM names the target as the draft."""
    speculative = None
    if method is not None:
        speculative = {"method": method, "num_speculative_tokens": 3, "prompt_lookup_max": 3}
    asked = {"speculative_config": speculative}
    refused("draft-dtype", ours={"kv_cache": {"draft_dtype": "float16"}}, **asked)
    refused("draft-window", ours={"drafting": {"window": 128}}, **asked)
    refused("give-up", ours={"drafting": {"give_up_below": 0.2}}, **asked)


@pytest.mark.parametrize("role", ["target", "draft"])
def test_a_backend_of_another_kind_is_refused(role):
    said = refused("backend", ours={"attention": {role: "mla"}}, speculative_config=draft())
    assert f"every attention layer of the {role}" in said


def test_patterns_are_left_to_layers_that_have_names():
    configured(ours={"attention": {"layers": {".*target.*": "mla"}}})


def test_vllms_own_name_of_a_backend_is_judged():
    said = refused("backend-name", attention_backend="FLASHINFER")
    assert "FLASHINFER" in said


def test_a_backend_that_vllm_names_itself_is_no_mistake_of_the_user():
    """It does for heads of unlike sizes above 256, as those of Gemma 4 that are published."""
    config = configured("gemma4", hf_overrides={"global_head_dim": 512})
    assert config.attention_config.backend is None


def test_options_are_judged_before_vllm_ascend_reads_them():
    refused("additional-config", additional_config={"attention": {"target": "mla"}})
    refused("options", ours={"atention": {}})


def test_facts_are_those_of_the_configuration():
    config = configured(
        speculative_config=draft(tokens=2), max_num_batched_tokens=640, enforce_eager=True
    )
    facts = facts_of_config.facts_of(config)
    assert facts.max_num_batched_tokens == 640
    assert (facts.graph_mode, facts.is_compiled) == ("NONE", False)
    assert (facts.speculation.method, facts.speculation.tokens) == ("draft_model", 2)
    assert facts.devices_needed == 1
    assert facts.draft.name == str(model_directory("llama_draft"))
    assert not facts_of_config.is_of_draft(config)
    config.model_config = config.speculative_config.draft_model_config
    assert facts_of_config.is_of_draft(config)


def test_padding_that_is_switched_off_is_a_fact():
    head = draft("llama_eagle3", method="eagle3", disable_padded_drafter_batch=True)
    facts = facts_of_config.facts_of(configured(speculative_config=head))
    assert facts.speculation.options["disable_padded_drafter_batch"]
    assert not facts.async_scheduling


def test_logits_processors_are_refused_beside_drafts():
    """vLLM calls none of them for tokens that it verifies, and says so in the worker."""
    refused("logits-processors", logits_processors=["a:B"], speculative_config=draft())


def test_a_host_says_what_its_rules_say(monkeypatch):
    config = configured(speculative_config=draft())
    early_check.check(config)
    facts = facts_of_config.facts_of(config)
    other = dataclasses.replace(facts, device=dataclasses.replace(facts.device, count=0))
    monkeypatch.setattr(early_check, "facts_of", lambda *_: other)
    with pytest.raises(RefusedError, match=r"\[devices\]"):
        early_check.check(config)


def test_a_window_that_would_do_nothing_is_refused_when_the_models_are_there():
    config = configured(speculative_config=draft(), ours={"drafting": {"window": 128}})
    selection_inputs.check_used(config, ["a layer"])
    with pytest.raises(SelectionError, match="no layer of the draft has a KV cache"):
        selection_inputs.check_used(config, [])


@hosts.only_on("vllm_ascend_0_30", "only there a worker of its own is needed")
def test_deepseek_v4_is_refused_where_the_host_cannot_serve_it():
    said = refused("executor", target="deepseek_v4_fitted")
    assert "executor-backend mp" in said
    configured("deepseek_v4_fitted", distributed_executor_backend="mp")
