# SPDX-License-Identifier: Apache-2.0
"""Training and measuring of tiny models with recurrent states."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.models.qwen3_next.modeling_qwen3_next import torch_chunk_gated_delta_rule

from mkv_ascend.testing.tiny_models import recurrent, sensitivity, training
from mkv_ascend.testing.tiny_models.recipe import RecurrentRecipe
from mkv_ascend.testing.tiny_models.tokenizer import BOS_TOKEN_ID

SMALL = RecurrentRecipe(
    name="small",
    model_type="qwen3_next",
    architecture={
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_attention_heads": 2,
        "head_dim": 16,
        "num_experts": 0,
        "layer_types": ["linear_attention", "full_attention"],
        "linear_num_key_heads": 1,
        "linear_num_value_heads": 2,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
    },
    steps=1,
)


@given(length=st.integers(1, 100), seed=st.integers(0, 1000))
@settings(max_examples=12)
def test_the_quick_rule_is_transformers(length: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    query, key, value = torch.randn(3, 2, length, 3, 8, generator=generator)
    beta, decay = torch.rand(2, 2, length, 3, generator=generator)
    expected, _ = torch_chunk_gated_delta_rule(
        query, key, value, g=-decay, beta=beta, use_qk_l2norm_in_kernel=True
    )
    found, _ = recurrent.delta_rule(query, key, value, g=-decay, beta=beta)
    assert torch.allclose(found, expected, atol=1e-5)


def test_states_last_and_the_rule_is_put_back() -> None:
    model = training.build_model(SMALL)
    (module,) = recurrent.recurrent_modules(model)
    rule = module.chunk_gated_delta_rule
    recurrent.let_states_last(module)
    steps = torch.nn.functional.softplus(module.dt_bias)
    decays = (-module.A_log.exp() * steps).exp()
    assert decays.tolist() == pytest.approx([0.999, 0.449], abs=1e-3)
    with recurrent.quickened([module]):
        assert module.chunk_gated_delta_rule is recurrent.delta_rule
    assert module.chunk_gated_delta_rule is rule


def test_a_missing_token_tells_nothing() -> None:
    """Missing in states and attention it cannot matter; in one of them it speaks by the other."""
    model = training.build_model(SMALL).eval()
    states = recurrent.recurrent_modules(model)
    context = [BOS_TOKEN_ID, *b"to be or not"]
    changed = [*context[:4], 120, *context[5:]]

    def rows(tokens: list[int], missing: list[Any], layers: list[int]) -> torch.Tensor:
        with recurrent.tokens_missing(missing):
            return sensitivity.logits_without_keys(model, tokens, layers=layers)

    for missing, layers, silent in ((states, [0], True), ([], [0], False), (states, [], False)):
        before, after = rows(context, missing, layers), rows(changed, missing, layers)
        assert torch.allclose(before[4], after[4], atol=1e-6) is silent
        assert not torch.allclose(before[5], after[5], atol=1e-6)


def test_a_model_without_states_is_refused() -> None:
    with pytest.raises(ValueError, match="Linear has no module named linear_attn"):
        recurrent.recurrent_modules(torch.nn.Linear(1, 1))
