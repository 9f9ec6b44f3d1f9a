# SPDX-License-Identifier: Apache-2.0
"""Training and measuring of tiny models with recurrent states."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.models.qwen3_next.modeling_qwen3_next import torch_chunk_gated_delta_rule

from tests.support.tiny_models import recurrent, sensitivity, state_space, training
from tests.support.tiny_models.recipe import RecurrentRecipe
from tests.support.tiny_models.recipes import find_recipe
from tests.support.tiny_models.tokenizer import BOS_TOKEN_ID

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

MAMBA = RecurrentRecipe(
    name="mamba",
    model_type="granitemoehybrid",
    architecture={
        "hidden_size": 32,
        "intermediate_size": 32,
        "shared_intermediate_size": 32,
        "num_attention_heads": 2,
        "num_local_experts": 0,
        "layer_types": ["mamba", "attention"],
        "mamba_n_heads": 4,
        "mamba_n_groups": 2,
        "mamba_d_state": 8,
        "mamba_d_head": 16,
        "mamba_chunk_size": 16,
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


def test_the_quick_mamba_is_transformers() -> None:
    model = training.build_model(MAMBA).eval()
    modules = recurrent.recurrent_modules(model)
    for module in modules:
        recurrent.let_states_last(module)
    tokens = torch.randint(0, 256, (2, 41), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        expected = model(tokens).logits
        with recurrent.quickened(modules):
            found = model(tokens).logits
            assert modules[0].forward.func is state_space.forward
        assert torch.equal(model(tokens).logits, expected)
    assert torch.allclose(found, expected, atol=1e-5)


def test_the_filter_of_a_short_convolution_is_no_layer_of_its_own() -> None:
    model = training.build_model(find_recipe("lfm2"))
    assert [type(part).__name__ for part in recurrent.recurrent_modules(model)] == [
        "Lfm2ShortConv"
    ] * 2


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


def test_of_a_window_only_the_tokens_that_it_holds_are_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two of a filter of three; all of a state, and all where attention is disturbed as well."""
    chosen = torch.nn.functional.one_hot(torch.tensor([1, 1, 1, 0, 1]), 4)
    undisturbed = torch.tensor([[[1.0, 0.0, 0.0, 0.0]]])
    monkeypatch.setattr(sensitivity, "logits_without_keys", lambda *_, **__: chosen)

    def model(**_: Any) -> SimpleNamespace:
        return SimpleNamespace(logits=undisturbed)

    windows = recurrent.recurrent_modules(training.build_model(find_recipe("lfm2")))
    states = recurrent.recurrent_modules(training.build_model(SMALL))
    for modules, layers, share in (
        (windows, [], 0.5),
        (windows, [0], 0.8),
        (states, [], 0.8),
        ([*windows, *states], [], 0.8),
    ):
        assert recurrent.missing_share(model, [[0] * 6], modules, layers) == share


def test_a_model_without_states_is_refused() -> None:
    with pytest.raises(ValueError, match="Linear has no module named linear_attn"):
        recurrent.recurrent_modules(torch.nn.Linear(1, 1))
