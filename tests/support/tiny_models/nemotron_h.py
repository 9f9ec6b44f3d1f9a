# SPDX-License-Identifier: Apache-2.0
"""Nemotron-H, transformers' own modules by names that say what they are, and its drafting layers.

transformers calls the one module of each layer ``mixer``, whatever it is. Here Mamba2, attention
and experts have names of their own, by which ``recurrent`` and ``sensitivity`` find them.
Checkpoints have the published names, with a matrix for each expert.

Mamba2 is not transformers' own code: in 5.5.4 and 5.14.1 it adds up states of chunks along the
wrong dimension, so that all after the first chunk is another model. A test shows it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import nn
from transformers.models.nemotron_h import modeling_nemotron_h as transformers_own
from transformers.models.nemotron_h.configuration_nemotron_h import NemotronHConfig

from tests.support.tiny_models import state_space
from tests.support.tiny_models.heads import MtpHead, causal_mask
from tests.support.tiny_models.own_names import OwnNames

MODEL_TYPE = "nemotron_h"

NAMES = {
    transformers_own.NemotronHMamba2Mixer: "mamba",
    transformers_own.NemotronHAttention: "self_attn",
    transformers_own.NemotronHMoE: "moe",
}
"""Class of the one module of a layer -> its name here."""


class Mamba2(transformers_own.NemotronHMamba2Mixer):
    """transformers' weights, and one product over all tokens (``state_space``)."""

    def forward(self, hidden_states: torch.Tensor, **_: Any) -> torch.Tensor:
        """``[rows, tokens, width]``, all from a zero state."""
        return state_space.forward(self, hidden_states)


class NemotronHLayer(transformers_own.NemotronHBlock):
    """One layer: a norm, and Mamba2, attention or experts."""

    def __init__(self, config: Any, layer_idx: int) -> None:
        super().__init__(config, layer_idx)
        module: Any = self._modules.pop("mixer")
        self.name = NAMES[type(module)]
        if self.name == "mamba":
            module = Mamba2(config, layer_idx)
        setattr(self, self.name, module)

    def forward(
        self, hidden_states: torch.Tensor, attention_mask: Any = None, **_: Any
    ) -> torch.Tensor:
        """As transformers'; each module takes what hooks of this package look for by name."""
        normed, module = self.norm(hidden_states), getattr(self, self.name)
        if self.name == "self_attn":
            mixed = module(hidden_states=normed, attention_mask=attention_mask)[0]
        elif self.name == "mamba":
            mixed = module(hidden_states=normed)
        else:
            mixed = module(normed)
        output: torch.Tensor = hidden_states + mixed
        return output


class NemotronHModel(transformers_own.NemotronHModel):
    """The layers, and an embedding by the name that it has in other families."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.embed_tokens = self._modules.pop("embeddings")
        for index in range(config.num_hidden_layers):
            self.layers[index] = NemotronHLayer(config, index)
        self.post_init()

    @property
    def embeddings(self) -> Any:
        """What transformers' code looks for."""
        return self.embed_tokens


class NemotronHOwnNamesConfig(NemotronHConfig):
    """transformers' own, which knows no class of models but its own for itself."""


class NemotronHForCausalLM(OwnNames, transformers_own.NemotronHForCausalLM):
    """The whole model."""

    config_class = NemotronHOwnNamesConfig

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.model = NemotronHModel(config)
        self.post_init()

    def published(self) -> dict[str, torch.Tensor]:
        """See ``OwnNames``."""
        return published(self.state_dict())


def published(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """``state`` by the names of checkpoints, with a view of each expert's matrices."""
    found = {}
    for name, value in state.items():
        for own in NAMES.values():
            name = name.replace(f".{own}.", ".mixer.")
        name = name.replace("embed_tokens", "embeddings")
        if name.startswith("model."):
            name = name.replace("model.", "backbone.", 1)
        if ".experts." not in name:
            found[name] = value
            continue
        stem, _, part = name.rpartition(".")
        found |= {f"{stem}.{index}.{part}.weight": matrix for index, matrix in enumerate(value)}
    return found


class NemotronHMtpHead(MtpHead):
    """Two layers, one with attention and one with experts, over token and hidden state."""

    PREFIX = "mtp."
    NAMES: Mapping[str, str] = {
        "token_norm": "layers.0.enorm",
        "known_norm": "layers.0.hnorm",
        "mix": "layers.0.eh_proj",
        "norm": "layers.1.final_layernorm",
    }
    copies_matrices = hides_first_token = False

    def make_norm(self) -> nn.Module:
        norm: nn.Module = transformers_own.NemotronHRMSNorm(
            self.config.hidden_size, eps=self.config.layer_norm_epsilon
        )
        return norm

    def make_layer(self) -> nn.Module:
        kinds = [layer.name for layer in self.target.model.layers]
        return nn.ModuleList(
            NemotronHLayer(self.config, kinds.index(kind)) for kind in ("self_attn", "moe")
        )

    def make_rope(self) -> None:
        """Nothing: attention has no positions."""

    def through(self, states: torch.Tensor) -> torch.Tensor:
        for layer in cast("nn.ModuleList", self.layer):
            states = layer(states, attention_mask=causal_mask(states.shape[1]))
        return states

    def layer_weights(self) -> dict[str, torch.Tensor]:
        return published({f"layers.{k}": value for k, value in self.layer.state_dict().items()})
