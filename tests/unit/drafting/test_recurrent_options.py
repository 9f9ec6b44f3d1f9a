# SPDX-License-Identifier: Apache-2.0
"""Programs that call ``vllm.LLM`` are refused what ``mkv-ascend check`` refuses of a draft."""

import re
import sys
from types import SimpleNamespace

import pytest

from mkv_ascend.adapters.common.drafting.recurrent_options import (
    has_recurrent_layers,
    switch_prefix_hits_off,
)
from mkv_ascend.adapters.common.early_checks import facts_of_config
from mkv_ascend.attention.entry import DeviceGeneration
from mkv_ascend.checks import about_draft
from mkv_ascend.checks.refusal import text_of


def model(name, hybrid=False, **values):
    attention_free = values.get("model_type") in ("mamba2", STATES_ALONE["model_type"])
    config = SimpleNamespace(to_dict=lambda: values)
    return SimpleNamespace(
        model=name,
        hf_config=config,
        hf_text_config=config,
        is_hybrid=hybrid,
        is_attention_free=attention_free,
        max_model_len=4096,
        multimodal_config=None,
        dtype="bfloat16",
        quantization=None,
        logits_processors=None,
    )


LLAMA = {"model_type": "llama", "vocab_size": 100, "hidden_size": 64, "num_hidden_layers": 8}
RECURRENT = {"model_type": "qwen3_next", "vocab_size": 100}
NEW_RECURRENT = {"model_type": "of_next_year", "vocab_size": 100}
GRANITE = {
    "model_type": "granitemoehybrid",
    "layer_types": ["linear_attention", "full_attention"],
    "vocab_size": 100,
}
"""As transformers 5.14.1 reads it; published files say ``mamba`` and ``attention``."""
COMPRESSED = {**LLAMA, "model_type": "deepseek_v4", "compress_ratios": [4, 128]}
STATES_ALONE = {"model_type": "of_states_alone", "vocab_size": 100}
"""Of a type that no list of ours names; vLLM's class says that it has no attention."""


def config(draft=RECURRENT, target=LLAMA, **changes):
    """What vLLM makes of a command with a recurrent draft model; ``changes``: what is unlike it."""
    hybrid = draft in (RECURRENT, NEW_RECURRENT)
    draft = {**draft, **changes.pop("draft_values", {})}
    target = {**target, **changes.pop("target_values", {})}
    speculative = {
        "method": "draft_model",
        "num_speculative_tokens": 3,
        "model": "a-draft",
        "draft_model_config": model("a-draft", hybrid, **draft),
        "draft_parallel_config": SimpleNamespace(tensor_parallel_size=1),
        "attention_backend": None,
        "disable_padded_drafter_batch": False,
        "parallel_drafting": False,
        "max_model_len": None,
    }
    cache = {"enable_prefix_caching": False, "mamba_cache_mode": "none", "kv_offloading_size": None}
    ranks = {**dict.fromkeys(facts_of_config.SPREAD, 1), "distributed_executor_backend": "uni"}
    ranks["enable_expert_parallel"] = False
    scheduler = {"max_num_batched_tokens": 2048, "max_num_seqs": 64}
    scheduler["disable_hybrid_kv_cache_manager"] = False
    others = {"kv_transfer_config": None, "additional_config": None}
    parts = (speculative, cache, ranks, scheduler, others)
    for name, value in changes.items():
        (part,) = (part for part in parts if name in part)
        part[name] = value
    made = SimpleNamespace(**speculative)
    made.uses_draft_model = lambda: made.method == "draft_model"
    return SimpleNamespace(
        model_config=model("a-target", **target),
        speculative_config=made,
        cache_config=SimpleNamespace(**cache),
        parallel_config=SimpleNamespace(**ranks),
        scheduler_config=SimpleNamespace(**scheduler),
        attention_config=SimpleNamespace(),
        compilation_config=SimpleNamespace(cudagraph_mode=None),
        **others,
    )


@pytest.fixture(autouse=True)
def _without_vllm_ascend(monkeypatch):
    monkeypatch.setitem(
        sys.modules, "vllm_ascend.utils", SimpleNamespace(enable_sp=lambda config: False)
    )


def facts_of(config):
    return facts_of_config.facts_of(config, DeviceGeneration.A2)


def refused(config):
    """What is refused of a draft, in the words that users read; empty if nothing is."""
    facts = facts_of(config)
    found = [refusal for check in about_draft.CHECKS for refusal in check(facts)]
    return text_of(found) if found else ""


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"draft": LLAMA},
        {"draft": NEW_RECURRENT},
        {"draft": LLAMA, "method": "eagle3"},
        # For these vLLM names the target as the draft: nothing of the target's is refused.
        {"draft": RECURRENT, "method": "ngram", "disable_padded_drafter_batch": True},
        {"enable_prefix_caching": True},
        {"enable_prefix_caching": True, "mamba_cache_mode": "align", "target": RECURRENT},
    ],
)
def test_what_can_be_served_is(changes):
    served = config(**changes)
    assert not refused(served)
    assert switch_prefix_hits_off(served, facts_of(served)) is None


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"disable_padded_drafter_batch": True}, "disable_padded_drafter_batch is set"),
        ({"parallel_drafting": True}, "parallel_drafting is set"),
        ({"decode_context_parallel_size": 2}, "decode_context_parallel_size is set"),
        ({"kv_transfer_config": SimpleNamespace(kv_role="kv_both")}, "--kv-transfer-config is set"),
        ({"kv_offloading_size": 4.0}, "--kv-offloading-size is set"),
        ({"additional_config": {"enable_reduce_sample": True}}, "enable_reduce_sample is set"),
        ({"draft": NEW_RECURRENT, "parallel_drafting": True}, "parallel_drafting is set"),
        ({"draft": GRANITE, "parallel_drafting": True}, "parallel_drafting is set"),
        ({"draft": {"model_type": "mamba2", "vocab_size": 100}}, "no attention layer"),
        ({"draft": {"model_type": "jamba", "vocab_size": 100}}, "Mamba1"),
        ({"target": {"model_type": "kimi_linear", "vocab_size": 100}}, "KDA"),
        ({"target": STATES_ALONE, "draft": LLAMA}, "a-target has no attention layer"),
        ({"target": STATES_ALONE, "draft": LLAMA, "method": "ngram"}, "counts accepted tokens"),
        ({"draft": {**LLAMA, "vocab_size": 99}}, "vocabulary of 99"),
        ({"draft": {**LLAMA, "hidden_size": 32}, "method": "eagle"}, "hidden states of 32"),
        ({"draft": LLAMA, "method": "mtp", "model": "a-target"}, "no multi-token predictor"),
        ({"draft": LLAMA, "max_model_len": 8192}, "max_model_len of --speculative-config is 8192"),
        (
            {"draft": LLAMA, "method": "dflash", "prefill_context_parallel_size": 2},
            "method dflash with prefill_context_parallel_size",
        ),
        (
            {
                "draft": LLAMA,
                "method": "dflash",
                "additional_config": {"enable_reduce_sample": True},
            },
            "method dflash with enable_reduce_sample",
        ),
        (
            {"draft": {**LLAMA, "layer_types": ["sliding_attention"]}, "method": "dflash"},
            "layers of the draft a-draft have sliding windows",
        ),
        (
            {
                "draft": {**LLAMA, "eagle_aux_hidden_state_layer_ids": [2, 9]},
                "method": "eagle3",
            },
            r"has \[9\]",
        ),
        ({"target": COMPRESSED, "draft": LLAMA, "method": "eagle3"}, "where a head takes one"),
        ({"target": COMPRESSED, "draft": LLAMA, "method": "dflash"}, "where a head takes one"),
        ({"draft": LLAMA, "max_num_batched_tokens": 64}, "leave none to schedule"),
        ({"draft": LLAMA, "disable_padded_drafter_batch": True}, "rejected tokens as padding"),
        (
            {"draft": {**LLAMA, "rope_scaling": {"mrope_section": [1, 2, 3]}}},
            "three positions for each token",
        ),
    ],
)
def test_each_mistake_is_refused_with_the_words_of_check(changes, says):
    assert re.search(says, refused(config(**changes)))


EXPERTS = {**LLAMA, "num_local_experts": 8}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"draft": LLAMA, "method": "dflash"}, "method dflash with enable_flashcomm1"),
        ({"draft": EXPERTS}, r"\(enable_flashcomm1\) is on, and the draft a-draft has 8 experts"),
        ({"draft": EXPERTS, "target": EXPERTS}, ""),
        ({"draft": LLAMA}, ""),
    ],
)
def test_sequence_parallelism_is_refused_where_ranks_cannot_share_rows(changes, says, monkeypatch):
    """It takes at least two ranks; on one there is nothing to refuse."""
    monkeypatch.setattr(sys.modules["vllm_ascend.utils"], "enable_sp", lambda config: True)
    assert not refused(config(**changes))
    ranks = {"tensor_parallel_size": 2}
    spread = config(**changes, **ranks)
    spread.speculative_config.draft_parallel_config = SimpleNamespace(**ranks)
    found = refused(spread)
    assert re.search(says, found) if says else not found


MROPE = {"mrope_section": [1]}
UNREAD = [
    ({"draft_values": {"sliding_window": 4096}}, "windows"),
    ({"draft_values": {"layer_types": ["linear_attention", "sliding_attention"]}}, "windows"),
    ({"draft_values": {"layer_types": ["linear_attention", "chunked_attention"]}}, "windows"),
    ({"target_values": {"vision_config": {}}}, "images"),
    ({"target_values": {"rope_parameters": MROPE}}, "images"),
    ({"data_parallel_size": 2}, "all ranks"),
]


@pytest.mark.parametrize(("changes", "reason"), UNREAD)
def test_prefix_hits_are_switched_off_where_the_draft_cannot_read_them(changes, reason):
    """vLLM switches them on by itself; beside states only who asks for them has them."""
    plain = config(enable_prefix_caching=True, **changes)
    facts = facts_of(plain)
    assert not refused(plain)
    said = switch_prefix_hits_off(plain, facts)
    assert "a-draft has recurrent layers" in said
    assert reason in said
    assert plain.cache_config.enable_prefix_caching is False
    assert switch_prefix_hits_off(plain, facts) is None

    aligned = config(
        target=RECURRENT, enable_prefix_caching=True, mamba_cache_mode="align", **changes
    )
    assert re.search(rf"\(--enable-prefix-caching\) is on .*{reason}", refused(aligned))
    assert switch_prefix_hits_off(aligned, facts_of(aligned)) is None
    assert aligned.cache_config.enable_prefix_caching is True


@pytest.mark.parametrize("values", [{"vision_config": {}}, {"rope_parameters": MROPE}])
def test_prompts_of_text_alone_are_read_again(values):
    """vLLM's option leaves the parts of the target for images out."""
    served = config(
        target=RECURRENT,
        enable_prefix_caching=True,
        mamba_cache_mode="align",
        target_values=values,
    )
    assert "images" in refused(served)
    served.model_config.multimodal_config = SimpleNamespace(language_model_only=True)
    assert not refused(served)


def test_layers_that_are_named_decide_not_a_window_that_none_of_them_has():
    values = {"layer_types": ["conv", "full_attention"], "sliding_window": 4096}
    served = config(enable_prefix_caching=True, draft_values=values)
    assert not refused(served)
    assert switch_prefix_hits_off(served, facts_of(served)) is None


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"draft": LLAMA}, False),
        ({"draft": {"model_type": "mamba2"}}, True),
        ({"method": "mtp"}, False),
    ],
)
def test_recurrent_drafts_are_models_of_their_own_with_states(changes, expected):
    assert has_recurrent_layers(config(**changes)) is expected


def test_without_a_draft_there_are_none():
    assert not has_recurrent_layers(SimpleNamespace(speculative_config=None))


def test_the_quantisation_that_vllm_settled_on_is_told():
    served = config()
    served.model_config.quantization = "ascend"
    served.speculative_config.draft_model_config.quantization = "fp8"
    facts = facts_of(served)
    assert facts.engine["quantization"] == "ascend"
    assert facts.speculation.options["quantization"] == "fp8"


def test_experts_move_between_ranks_of_the_target_alone():
    """vLLM 0.23.0 tells a draft model, whose own configuration is judged, too, of no such ranks."""
    experts = {**LLAMA, "num_experts": 8}
    moving = {"additional_config": {"eplb_config": {"dynamic_eplb": True}}}
    given = {"draft": experts, "target": experts, **moving}
    assert "no ranks share experts out" in refused(config(**given))
    assert not refused(config(**given, enable_expert_parallel=True, data_parallel_size=2))
    of_draft = config(**given)
    of_draft.model_config = of_draft.speculative_config.draft_model_config
    assert not refused(of_draft)
    of_lookups = config(**given, method="ngram")
    of_lookups.model_config = of_lookups.speculative_config.draft_model_config
    assert "no ranks share experts out" in refused(of_lookups)
