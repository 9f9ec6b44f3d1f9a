# SPDX-License-Identifier: Apache-2.0
"""Drafting layers of single families: what they take from targets and hand to their next step."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.support.tiny_models import (
    further_heads,
    further_models,
    head_training,
    training,
)
from tests.support.tiny_models.heads import Head
from tests.support.tiny_models.recipes import HeadRecipe, Recipe

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
}
EXPERTS = {
    "moe_intermediate_size": 16,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 1,
}
LATENT = {
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
}
WINDOW = 3
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "qwen2": {},
    "glm4_moe": {"head_dim": 16, **EXPERTS},
    "glm4_moe_lite": {**LATENT, **EXPERTS},
    "pangu_ultra_moe": {**LATENT, **EXPERTS},
}
"""Families whose layer does not see the token at position 0."""
WITH_A_WINDOW: dict[str, Any] = {
    "head_dim": 16,
    "layer_types": ["sliding_attention", "full_attention"],
    "sliding_window": WINDOW,
    "sliding_window_pattern": 2,
    "moe_intermediate_size": 16,
    "num_experts": 4,
    "num_experts_per_tok": 2,
}
UNEQUAL: dict[str, Any] = {
    "head_dim": 24,
    "v_head_dim": 16,
    "swa_head_dim": 24,
    "swa_v_head_dim": 16,
    "swa_num_attention_heads": 2,
    "swa_num_key_value_heads": 2,
    "swa_rope_theta": 100.0,
    "partial_rotary_factor": 0.34,
    "attention_value_scale": 0.7,
    "add_swa_attention_sink_bias": True,
    "sliding_window_size": WINDOW,
    "hybrid_layer_pattern": [0, 1],
    "moe_layer_freq": [0, 1],
    **EXPERTS,
}
SEEN = {"exaone_moe": WITH_A_WINDOW, "mimo_v2_flash": UNEQUAL}
"""Families whose layer has a window, and sees that token."""
TOKENS = torch.tensor([[5, 9, 2, 77, 3, 3]])


def head_of(model_type: str) -> Head:
    """A head with random weights, norms too, on a random target."""
    further_models.register()
    architecture = {**SIZES, **(ARCHITECTURES | SEEN)[model_type]}
    target = training.build_model(Recipe("small", model_type, architecture, steps=1)).eval()
    recipe = HeadRecipe(
        name="small_mtp",
        model_type=model_type,
        architecture={},
        steps=1,
        source="small",
        method="mtp",
    )
    further_heads.register()
    head = head_training.build_head(recipe, target)
    torch.manual_seed(3)
    for parameter in (*target.parameters(), *head.parameters()):
        torch.nn.init.uniform_(parameter, 0.5, 1.5) if parameter.dim() < 2 else None
    return head.eval()


def hidden_states(head: Head) -> tuple[Any, torch.Tensor]:
    """The target's hidden states, and the last layer's output."""
    outputs: list[Any] = []
    last = head.target.model.layers[-1]
    hook = last.register_forward_hook(lambda _module, _inputs, output: outputs.append(output))
    with torch.inference_mode():
        states = head.target(input_ids=TOKENS, output_hidden_states=True).hidden_states
    hook.remove()
    return states, outputs[0][0] if isinstance(outputs[0], tuple) else outputs[0]


def test_mimo_takes_the_last_layers_output_before_the_norm() -> None:
    head: Any = head_of("qwen2")
    states, before = hidden_states(head)
    with torch.inference_mode():
        taken, wanted = head.hidden_layernorm(head.known(states)), head.hidden_layernorm(before)
        normed = head.hidden_layernorm(states[-1])
    torch.testing.assert_close(taken, wanted, atol=2e-4, rtol=1e-3)
    assert (normed - wanted).abs().max() > 0.1


@pytest.mark.parametrize("model_type", ["qwen2", *SEEN])
def test_some_layers_hand_on_what_is_normed(model_type: str) -> None:
    with torch.inference_mode():
        head: Any = head_of(model_type)
        states, following = head(TOKENS, head.known(hidden_states(head)[0]))
        assert torch.equal(states, following)


@pytest.mark.parametrize("model_type", ["glm4_moe", "glm4_moe_lite", "pangu_ultra_moe"])
def test_some_layers_hand_on_what_is_not_normed(model_type: str) -> None:
    with torch.inference_mode():
        head: Any = head_of(model_type)
        states, following = head(TOKENS, head.known(hidden_states(head)[0]))
        torch.testing.assert_close(head.norm(following), states)
        assert (following - states).abs().max() > 0.1


@pytest.mark.parametrize("model_type", SEEN)
def test_a_layer_sees_as_many_tokens_as_its_window_has(model_type: str) -> None:
    head = head_of(model_type)
    with torch.inference_mode():
        known = head.known(hidden_states(head)[0])
        states = head(TOKENS, known)[0]
        others = TOKENS.clone()
        others[0, 1] = 8
        changed = (head(others, known)[0] - states).abs().amax(-1)[0] > 1e-4
    wanted = [1 <= position < 1 + WINDOW for position in range(TOKENS.shape[1])]
    assert changed.tolist() == wanted


@pytest.mark.parametrize("model_type", ARCHITECTURES)
def test_the_token_at_position_0_is_hidden(model_type: str) -> None:
    head = head_of(model_type)
    others = TOKENS.clone()
    others[0, 0] = 8
    with torch.inference_mode():
        known = head.known(hidden_states(head)[0])
        assert torch.equal(head(TOKENS, known)[0], head(others, known)[0])
        others[0, 1] = 8
        assert not torch.equal(head(TOKENS, known)[0], head(others, known)[0])
