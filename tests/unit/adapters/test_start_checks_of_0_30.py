# SPDX-License-Identifier: Apache-2.0
"""What 0.30.0rc2's adapter refuses before the start: steps beside states, and families."""

from types import SimpleNamespace

import pytest
import torch

from benchmarks.matrix.refusals import known_refusal
from mkv_ascend.adapters.vllm_ascend_0_30.common import start_checks
from mkv_ascend.adapters.vllm_ascend_0_30.host import FAMILIES
from tests.support import hosts

GDN = SimpleNamespace(
    model="qwen3-next",
    is_hybrid=True,
    is_attention_free=False,
    hf_text_config=SimpleNamespace(linear_num_value_heads=4),
)


BLOCK = 128
LONG_PROMPT = SimpleNamespace(
    num_computed_tokens=0, num_prompt_tokens=1000, num_tokens=1000, shared_prefix_boundary=0
)


def asked_for(most, kept_back, chunk, scheduled=None):
    return SimpleNamespace(
        cache_config=SimpleNamespace(mamba_cache_mode="align", block_size=BLOCK),
        speculative_config=SimpleNamespace(max_num_new_slots_for_drafting=kept_back),
        scheduler_config=SimpleNamespace(
            max_num_batched_tokens=most,
            max_num_scheduled_tokens=scheduled,
            long_prefill_token_threshold=chunk,
        ),
    )


def first_chunk(config):
    """Tokens of a long prompt that vLLM's own scheduler takes in its first step.

    Where vllm-ascend is loaded, it has wrapped the method for those who transfer keys.
    """
    from vllm.v1.core.sched.scheduler import Scheduler

    limits = config.scheduler_config
    most = limits.max_num_scheduled_tokens or limits.max_num_batched_tokens
    kept_back = config.speculative_config.max_num_new_slots_for_drafting
    offered = min(most, limits.max_num_batched_tokens - kept_back)
    scheduler = SimpleNamespace(
        cache_config=config.cache_config,
        scheduler_config=limits,
        vllm_config=SimpleNamespace(kv_transfer_config=None, model_config=GDN),
        max_num_scheduled_tokens=most,
        hash_block_size=BLOCK,
        use_eagle_block_drop=False,
        mamba_has_prefill_checkpoint_blocks=False,
        mamba_partial_cache_hit=False,
        mamba_fine_grained_prefix_cache=False,
    )
    chunk = limits.long_prefill_token_threshold
    offered = min(offered, chunk) if chunk else offered
    return Scheduler._mamba_block_aligned_split(scheduler, LONG_PROMPT, offered)


def refusal_of(config, *, states_kept=True):
    """What is said of these limits, beside a group that hits do not read; None if nothing is."""
    from vllm.v1.kv_cache_interface import MambaSpec, UniformTypeKVCacheSpecs

    layer = MambaSpec(block_size=BLOCK, shapes=((4, 4),), dtypes=(torch.float32,))
    # Groups describe each of their layers.
    kept = UniformTypeKVCacheSpecs(block_size=BLOCK, kv_cache_specs={"a layer": layer})
    specs = [
        kept if states_kept else SimpleNamespace(block_size=BLOCK, prefix_cacheable=True),
        SimpleNamespace(block_size=16, prefix_cacheable=False),
    ]
    try:
        start_checks.refuse_steps_that_wait(config, specs)
    except ValueError as error:
        return str(error)
    return None


@hosts.only_on("vllm_ascend_0_30", "vLLM 0.23.0 refuses such steps itself")
@pytest.mark.parametrize("scheduled", [None, BLOCK])
@pytest.mark.parametrize("kept_back", [0, 1, 3])
@pytest.mark.parametrize("chunk", [0, BLOCK - 1, BLOCK, BLOCK + 1])
def test_steps_are_refused_in_which_vllm_would_take_nothing_of_a_long_prompt(
    kept_back, chunk, scheduled
):
    refused = 0
    for most in range(scheduled or BLOCK - 2, BLOCK + 5):
        config = asked_for(most, kept_back, chunk, scheduled)
        said = refusal_of(config)
        assert (said is not None) == (first_chunk(config) == 0)
        if said is None:
            continue
        refused += 1
        assert f"drafts keep {kept_back}: a long prompt would wait for ever" in said
        enough = most + int(said.partition("Raise it by ")[2].split()[0])
        assert first_chunk(asked_for(enough, kept_back, chunk, scheduled)) > 0
        assert first_chunk(asked_for(enough - 1, kept_back, chunk, scheduled)) == 0
    assert refused == (0 if chunk == BLOCK - 1 else kept_back)


@hosts.only_on("vllm_ascend_0_30", "vLLM 0.23.0 refuses such steps itself")
def test_such_steps_are_served_where_no_layer_keeps_states():
    waits = asked_for(BLOCK, 1, 0)
    assert refusal_of(waits)
    assert refusal_of(waits, states_kept=False) is None


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
