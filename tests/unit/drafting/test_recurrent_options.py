# SPDX-License-Identifier: Apache-2.0
"""What a draft with recurrent layers cannot be combined with is refused, each by its name."""

from types import SimpleNamespace

import pytest

from mkv_ascend.adapters.common.drafting.recurrent_options import (
    has_recurrent_layers,
    refuse_options_of_recurrent_drafts,
    switch_prefix_hits_off,
)


def config(**changes):
    draft = SimpleNamespace(
        model="a-draft",
        is_attention_free=changes.get("is_attention_free", False),
        is_hybrid=changes.get("is_hybrid", True),
        hf_text_config=SimpleNamespace(layer_types=changes.get("layer_types")),
        get_sliding_window=lambda: changes.get("window"),
    )
    target = SimpleNamespace(
        is_multimodal_model=changes.get("images", False), uses_mrope=changes.get("mrope", False)
    )
    speculative = SimpleNamespace(
        draft_model_config=draft,
        uses_draft_model=lambda: changes.get("method", "draft_model") == "draft_model",
        disable_padded_drafter_batch=changes.get("disable_padded_drafter_batch", False),
        parallel_drafting=changes.get("parallel_drafting", False),
    )
    cache = SimpleNamespace(
        enable_prefix_caching=changes.get("enable_prefix_caching", False),
        mamba_cache_mode=changes.get("mamba_cache_mode", "none"),
        kv_offloading_size=changes.get("kv_offloading_size"),
    )
    parallel = SimpleNamespace(
        prefill_context_parallel_size=1,
        decode_context_parallel_size=changes.get("decode_context_parallel_size", 1),
        data_parallel_size=changes.get("data_parallel_size", 1),
    )
    return SimpleNamespace(
        model_config=target,
        kv_transfer_config=changes.get("connector"),
        speculative_config=speculative,
        cache_config=cache,
        parallel_config=parallel,
    )


def test_a_plain_configuration_is_served():
    refuse_options_of_recurrent_drafts(config())


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"layer_types": ["linear_attention", "full_attention"]},
        # Layers that are named decide, not a window that none of them has.
        {"layer_types": ["conv", "full_attention"], "window": 4096},
    ],
)
def test_prefix_hits_stay_on_where_the_draft_can_read_them(changes):
    served = config(enable_prefix_caching=True, **changes)
    assert switch_prefix_hits_off(served) is None
    assert served.cache_config.enable_prefix_caching is True
    refuse_options_of_recurrent_drafts(served)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"window": 4096}, "windows"),
        ({"layer_types": ["mamba", "sliding_attention", "full_attention"]}, "windows"),
        ({"layer_types": ["mamba", "chunked_attention"]}, "windows"),
        ({"images": True}, "images"),
        ({"mrope": True}, "images"),
        ({"data_parallel_size": 2}, "all ranks"),
    ],
)
def test_prefix_hits_are_switched_off_where_the_draft_cannot_read_them(changes, reason):
    """vLLM switches them on by itself; beside states only who asks for them has them."""
    plain = config(enable_prefix_caching=True, **changes)
    said = switch_prefix_hits_off(plain)
    assert "a-draft has recurrent layers" in said
    assert reason in said
    assert plain.cache_config.enable_prefix_caching is False
    refuse_options_of_recurrent_drafts(plain)
    assert switch_prefix_hits_off(plain) is None

    aligned = config(enable_prefix_caching=True, mamba_cache_mode="align", **changes)
    assert switch_prefix_hits_off(aligned) is None
    assert aligned.cache_config.enable_prefix_caching is True


@pytest.mark.parametrize(
    ("option", "value", "advice"),
    [
        ("disable_padded_drafter_batch", True, "disable_padded_drafter_batch is set"),
        ("parallel_drafting", True, "parallel_drafting is set"),
        ("decode_context_parallel_size", 2, "decode_context_parallel_size"),
        ("is_attention_free", True, "no attention layer"),
        ("connector", "a connector", "no states of a draft. Leave it out"),
        ("kv_offloading_size", 4.0, "no states of a draft. Leave it out"),
    ],
)
def test_each_option_is_refused_with_what_to_change(option, value, advice):
    with pytest.raises(NotImplementedError, match=f"a-draft has recurrent layers.*{advice}"):
        refuse_options_of_recurrent_drafts(config(**{option: value}))


@pytest.mark.parametrize(
    ("changes", "advice"),
    [
        ({"window": 4096}, "keys before its windows.*Leave out --enable-prefix-caching"),
        ({"data_parallel_size": 2}, "all ranks. Leave out --enable-prefix-caching"),
    ],
)
def test_what_cannot_be_beside_states_of_the_target_at_ends_of_blocks(changes, advice):
    aligned = {"enable_prefix_caching": True, "mamba_cache_mode": "align"}
    refuse_options_of_recurrent_drafts(config(**aligned))
    with pytest.raises(NotImplementedError, match=advice):
        refuse_options_of_recurrent_drafts(config(**aligned, **changes))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"is_hybrid": False}, False),
        ({"is_hybrid": False, "is_attention_free": True}, True),
        ({"method": "mtp"}, False),
    ],
)
def test_recurrent_drafts_are_models_of_their_own_with_states(changes, expected):
    assert has_recurrent_layers(config(**changes)) is expected


def test_without_a_draft_there_are_none():
    assert not has_recurrent_layers(SimpleNamespace(speculative_config=None))
