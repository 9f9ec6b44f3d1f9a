# SPDX-License-Identifier: Apache-2.0
"""LongCat-Flash, transformers' own modules, and its drafting layer.

A layer has attention (MLA) and an MLP twice, and experts beside its second half. Some experts have
no matrices: they hand their input on. Checkpoints have the published names.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Any, cast

import torch
from torch import nn
from transformers.models.longcat_flash import modeling_longcat_flash as transformers_own
from transformers.models.longcat_flash.configuration_longcat_flash import LongcatFlashConfig

from tests.support.tiny_models.heads import MtpHead, separate_experts
from tests.support.tiny_models.own_names import OwnNames

MODEL_TYPE = "longcat_flash"

ROUTER_SPREAD = 0.1
"""Standard deviation of a router's weights, with which scores of experts are clearly apart."""


class Half(nn.Module):
    """Holds one of both attentions, where ``sensitivity`` looks for it by name."""

    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.self_attn = attention


class LongcatLayer(transformers_own.LongcatFlashDecoderLayer):
    """Two halves of attention and MLP; experts read the first half's and add to the second's."""

    def __init__(self, config: Any, layer_idx: int) -> None:
        super().__init__(config, layer_idx)
        attentions: Any = self._modules.pop("self_attn")
        self.halves = nn.ModuleList(Half(attention) for attention in attentions)

    def forward(self, hidden_states: torch.Tensor, **given: Any) -> torch.Tensor:
        """As transformers', with both attentions by their names here."""
        named = {name: given[name] for name in ("attention_mask", "position_embeddings")}
        states, routed = hidden_states, torch.zeros(())
        halves = cast("Iterable[Half]", self.halves)
        for index, half in enumerate(halves):
            normed = self.input_layernorm[index](states)
            states = states + half.self_attn(hidden_states=normed, **named)[0]
            normed = self.post_attention_layernorm[index](states)
            routed = routed if index else self.mlp(normed)
            states = states + self.mlps[index](normed)
        return states + routed


class LongcatOwnNamesConfig(LongcatFlashConfig):
    """transformers' own, which knows no class of models but its own for itself."""


class LongcatFlashForCausalLM(OwnNames, transformers_own.LongcatFlashForCausalLM):
    """The whole model."""

    config_class = LongcatOwnNamesConfig

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        # transformers counts attentions here as soon as a model is built. vLLM counts layers, as
        # the configuration does that published checkpoints bring along.
        config.num_hidden_layers = config.num_layers
        for index in range(config.num_layers):
            self.model.layers[index] = LongcatLayer(config, index)
        self.post_init()
        # Not trained: a router that learns sends hardly anything to experts without matrices, and
        # nobody would see whether an engine adds what they give.
        for layer in self.model.layers:
            nn.init.normal_(layer.mlp.router.classifier.weight, std=ROUTER_SPREAD)
            layer.mlp.router.classifier.weight.requires_grad_(False)

    def published(self) -> dict[str, torch.Tensor]:
        """See ``OwnNames``. Experts without matrices have none in checkpoints."""
        found = {}
        for name, value in separate_experts(self.state_dict()).items():
            _, _, expert = name.partition(".mlp.experts.")
            if expert and int(expert.split(".")[0]) >= self.config.n_routed_experts:
                continue
            for index in range(2):
                name = name.replace(f".halves.{index}.self_attn.", f".self_attn.{index}.")
            found[name] = value
        return found


class DraftingLayer(nn.Module):
    """Attention as the target's, and one MLP."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        norm = functools.partial(
            transformers_own.LongcatFlashRMSNorm, config.hidden_size, eps=config.rms_norm_eps
        )
        self.input_layernorm, self.post_attention_layernorm = norm(), norm()
        self.self_attn = transformers_own.LongcatFlashMLA(config, 0)
        self.mlp = transformers_own.LongcatFlashMLP(config)

    def forward(self, hidden_states: torch.Tensor, **given: Any) -> torch.Tensor:
        """Both with what they add to."""
        normed = self.input_layernorm(hidden_states)
        states = hidden_states + self.self_attn(hidden_states=normed, **given)[0]
        output: torch.Tensor = states + self.mlp(self.post_attention_layernorm(states))
        return output


class LongcatMtpHead(MtpHead):
    """One layer without experts; its next step takes states after the last norm."""

    PREFIX = "model.mtp."
    NAMES: Mapping[str, str] = {
        "token_norm": "layers.0.enorm.m",
        "known_norm": "layers.0.hnorm.m",
        "mix": "layers.0.eh_proj",
        "norm": "norm",
    }
    copies_matrices = hides_first_token = False

    def make_layer(self) -> nn.Module:
        return DraftingLayer(self.config)

    def layer_weights(self) -> dict[str, torch.Tensor]:
        """Of the target's matrices, checkpoints have the embedding once more."""
        named = {"embed_tokens.weight": self.target.get_input_embeddings().weight}
        for name, value in self.layer.state_dict().items():
            prefix = "layers.0.transformer_layer." if name.startswith("mlp.") else "layers.0."
            named[f"{prefix}{name}"] = value
        return named
