# SPDX-License-Identifier: Apache-2.0
"""Drafts beside states that 0.30.0rc2's adapter cannot take back are refused before the start."""

from types import SimpleNamespace

import pytest

from mkv_ascend.adapters.vllm_ascend_0_30.common.early_checks import states

DENSE = SimpleNamespace(
    model="dense", is_hybrid=False, is_attention_free=False, hf_text_config=SimpleNamespace()
)
MAMBA2 = SimpleNamespace(
    model="granite",
    is_hybrid=True,
    is_attention_free=False,
    hf_text_config=SimpleNamespace(mamba_chunk_size=256),
)
WINDOWS = SimpleNamespace(
    model="lfm2",
    is_hybrid=True,
    is_attention_free=False,
    hf_text_config=SimpleNamespace(conv_L_cache=3),
)
OTHER = SimpleNamespace(
    model="jamba", is_hybrid=True, is_attention_free=False, hf_text_config=SimpleNamespace()
)
KDA = SimpleNamespace(
    model="kimi-k3",
    is_hybrid=True,
    is_attention_free=False,
    hf_text_config=SimpleNamespace(linear_attn_config={"use_full_rank_gate": True}),
)
GDN = SimpleNamespace(
    model="qwen3-next",
    is_hybrid=True,
    is_attention_free=False,
    hf_text_config=SimpleNamespace(linear_num_value_heads=4),
)


def reason(target, draft=DENSE, method="draft_model", mode="align"):
    speculative = SimpleNamespace(
        method=method,
        draft_model_config=draft,
        uses_draft_model=lambda: method == "draft_model",
    )
    return states.why_not_served(
        SimpleNamespace(
            speculative_config=speculative if draft is not None else None,
            model_config=target,
            cache_config=SimpleNamespace(mamba_cache_mode=mode),
        )
    )


@pytest.mark.parametrize(
    ("target", "draft", "method"),
    [
        (MAMBA2, None, "draft_model"),
        (DENSE, DENSE, "draft_model"),
        (DENSE, GDN, "draft_model"),
        (DENSE, DENSE, "ngram"),
        (GDN, DENSE, "draft_model"),
        (GDN, GDN, "draft_model"),
        (GDN, DENSE, "mtp"),
        (GDN, DENSE, "ngram"),
        (MAMBA2, DENSE, "draft_model"),
        (MAMBA2, DENSE, "suffix"),
        (WINDOWS, DENSE, "draft_model"),
        (KDA, DENSE, "draft_model"),
        (KDA, KDA, "ngram"),
    ],
)
def test_what_tests_show_to_be_right_is_served(target, draft, method):
    assert reason(target, draft, method) is None


@pytest.mark.parametrize("method", ["draft_model", "eagle3", "ngram"])
def test_drafts_beside_other_states_are_refused(method):
    assert f"{method} drafts are asked for beside jamba" in reason(OTHER, DENSE, method)


@pytest.mark.parametrize("draft", [None, DENSE])
def test_states_of_all_blocks_are_refused_with_what_is_possible(draft):
    assert "use --mamba-cache-mode align" in reason(GDN, draft, mode="all")
    assert reason(DENSE, draft, mode="all") is None, "it has no states"
