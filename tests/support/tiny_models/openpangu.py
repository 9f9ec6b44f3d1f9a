# SPDX-License-Identifier: Apache-2.0
"""openPangu Ultra with experts, of which transformers has no class, and its drafting layer.

Read from vLLM's class: attention (MLA), router and experts are GLM-4.7-Flash's, whose modules
transformers has. What is openPangu's own are norms behind attention and behind experts, too. Its
checkpoints bring code for their configuration along, and so does this one.
"""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import torch
from transformers.models.glm4_moe_lite.configuration_glm4_moe_lite import Glm4MoeLiteConfig
from transformers.models.glm4_moe_lite.modeling_glm4_moe_lite import (
    Glm4MoeLiteDecoderLayer,
    Glm4MoeLiteForCausalLM,
    Glm4MoeLiteRMSNorm,
)

from tests.support.tiny_models import own_names
from tests.support.tiny_models.further_heads import Glm4MoeLiteMtpHead
from tests.support.tiny_models.heads import separate_experts
from tests.support.tiny_models.own_names import OwnNames

MODEL_TYPE = "pangu_ultra_moe"

NOT_PUBLISHED = ("gate.e_score_correction_bias",)
"""Ends of names of tensors that this family's checkpoints do not have; transformers' are zeros."""


class OpenPanguConfig(Glm4MoeLiteConfig):
    """GLM-4.7-Flash's sizes under this family's name."""

    model_type = MODEL_TYPE


class OpenPanguLayer(Glm4MoeLiteDecoderLayer):
    """Attention and MLP or experts, each between two norms."""

    def __init__(self, config: Any, layer_idx: int) -> None:
        super().__init__(config, layer_idx)
        width, epsilon = config.hidden_size, config.rms_norm_eps
        self.pre_mlp_layernorm = Glm4MoeLiteRMSNorm(width, eps=epsilon)
        self.post_mlp_layernorm = Glm4MoeLiteRMSNorm(width, eps=epsilon)

    def forward(self, hidden_states: torch.Tensor, **given: Any) -> torch.Tensor:
        """Both halves with what they add to."""
        named = {name: given[name] for name in ("attention_mask", "position_embeddings")}
        attended, _ = self.self_attn(hidden_states=self.input_layernorm(hidden_states), **named)
        states = hidden_states + self.post_attention_layernorm(attended)
        fed = self.post_mlp_layernorm(self.mlp(self.pre_mlp_layernorm(states)))
        return cast("torch.Tensor", states + fed)


class OpenPanguForCausalLM(OwnNames, Glm4MoeLiteForCausalLM):
    """The whole model."""

    config_class = OpenPanguConfig

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        for index in range(config.num_hidden_layers):
            self.model.layers[index] = OpenPanguLayer(config, index)
        self.post_init()

    def published(self) -> dict[str, torch.Tensor]:
        """See ``OwnNames``."""
        return published(separate_experts(self.state_dict()))

    def save_pretrained(self, path: Any, *arguments: Any, **named: Any) -> None:
        """See ``OwnNames``; the configuration comes with its code."""
        super().save_pretrained(path, *arguments, **named)
        folder = Path(path)
        code = own_names.write_code(
            folder,
            "configuration_openpangu_moe",
            family="openPangu Ultra with experts",
            name="PanguUltraMoEConfig",
            model_type=MODEL_TYPE,
        )
        file = folder / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **code}, indent=2) + "\n")


def published(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """``weights`` without those that checkpoints of this family do not have."""
    return {name: value for name, value in weights.items() if not name.endswith(NOT_PUBLISHED)}


class OpenPanguMtpHead(Glm4MoeLiteMtpHead):
    """One more layer of the target's own kind, with experts."""

    def __init__(self, target: Any) -> None:
        super().__init__(target)
        self.hands_on_normed = hands_on_normed_states()

    def weights(self) -> dict[str, torch.Tensor]:
        return published(super().weights())


def hands_on_normed_states() -> bool:
    """Whether the installed vLLM hands a layer's next step the states behind its norm (0.30).

    Its class derives from DeepSeek's, where vLLM 0.23.0 hands on those before it.
    """
    return not version("vllm").startswith("0.23.")
