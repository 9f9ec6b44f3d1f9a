# SPDX-License-Identifier: Apache-2.0
"""Step-3.5, of which transformers has no class, and its drafting layer, in plain torch.

Read from vLLM's class and the published checkpoints' configuration. Layers with a window have more
heads of queries, another base of rotation, and rotate whole heads; the others rotate a half. Each
head's output has a gate, norms are zero-centred, and experts are packed into one matrix each way.
The activation that is cut off, which two layers of published models have, is left out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn
from torch.nn.functional import silu
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

from tests.support.tiny_models.heads import MtpHead
from tests.support.tiny_models.own_names import OwnNames
from tests.support.tiny_models.plain_attention import by_head, turned, within_window

MODEL_TYPE = "step3p5"

PUBLISHED_SIZES = {"kinds_of_layers": "layer_types", "bases_of_rotation": "rope_theta"}
"""Name here -> in config.json, where each has an entry for the drafting layer too. transformers
takes no such list by its published name."""


class Step3p5Config(LlamaConfig):
    """Llama's sizes, and those of this family as published checkpoints name them."""

    model_type = MODEL_TYPE

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **named: Any) -> Any:
        """From what a config.json holds."""
        back = {there: own for own, there in PUBLISHED_SIZES.items()}
        return super().from_dict(
            {back.get(name, name): value for name, value in config_dict.items()}, **named
        )


class ZeroCentredNorm(nn.Module):
    """RMSNorm whose weight is what is added to 1."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))
        self.eps = eps

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """``states`` of length 1 per element, scaled."""
        normed = states * torch.rsqrt(states.square().mean(-1, keepdim=True) + self.eps)
        return normed * (1 + self.weight)


class Attention(nn.Module):
    """Attention over groups of heads, with a gate for each head and maybe a window."""

    def __init__(self, config: Any, layer: int) -> None:
        super().__init__()
        sizes = config.attention_other_setting
        has_window = config.kinds_of_layers[layer] == sizes["attention_type"]
        self.window = config.sliding_window if has_window else None
        self.heads = (sizes if has_window else vars(config))["num_attention_heads"]
        self.groups, self.size = config.num_attention_groups, config.head_dim
        self.base = config.bases_of_rotation[layer]
        self.rotated = int(self.size * config.partial_rotary_factors[layer])
        width, inner = config.hidden_size, self.groups * self.size
        self.q_proj = nn.Linear(width, self.heads * self.size, bias=False)
        self.k_proj = nn.Linear(width, inner, bias=False)
        self.v_proj = nn.Linear(width, inner, bias=False)
        self.g_proj = nn.Linear(width, self.heads, bias=False)
        self.o_proj = nn.Linear(self.heads * self.size, width, bias=False)
        self.q_norm = ZeroCentredNorm(self.size, config.rms_norm_eps)
        self.k_norm = ZeroCentredNorm(self.size, config.rms_norm_eps)

    def forward(self, hidden_states: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """[rows, tokens, width]; ``attention_mask`` is added to the scores."""
        query = self.q_norm(by_head(self.q_proj(hidden_states), self.size))
        key = self.k_norm(by_head(self.k_proj(hidden_states), self.size))
        query, key = (turned(part, self.rotated, self.base) for part in (query, key))
        value = by_head(self.v_proj(hidden_states), self.size)
        shared = self.heads // self.groups
        key, value = (part.repeat_interleave(shared, dim=1) for part in (key, value))
        scores = query @ key.mT * self.size**-0.5 + attention_mask
        scores = within_window(scores, self.window)
        attended = (scores.softmax(-1) @ value).transpose(1, 2)
        gated = attended * self.g_proj(hidden_states).sigmoid()[..., None]
        states: torch.Tensor = self.o_proj(gated.flatten(-2))
        return states


class Mlp(nn.Module):
    """A gated MLP."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(width, inner, bias=False)
        self.up_proj = nn.Linear(width, inner, bias=False)
        self.down_proj = nn.Linear(inner, width, bias=False)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """As ``states``."""
        output: torch.Tensor = self.down_proj(silu(self.gate_proj(states)) * self.up_proj(states))
        return output


class Packed(nn.Module):
    """One matrix of each expert: ``weight`` [experts, out, in]."""

    def __init__(self, experts: int, out: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(experts, out, width) * 0.02)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """[experts, tokens, out] of [tokens, in] or [experts, tokens, in]."""
        return states @ self.weight.mT


class Experts(nn.Module):
    """Experts chosen by a sigmoid and a bias, which has no part in their weights."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        count, width, inner = (
            config.moe_num_experts,
            config.hidden_size,
            config.moe_intermediate_size,
        )
        self.chosen, self.scale = config.moe_top_k, config.moe_router_scaling_factor
        self.gate = nn.Linear(width, count, bias=False)
        # Not trained. With zeros nobody would see whether an engine adds it.
        self.router_bias = nn.Parameter(torch.linspace(-0.1, 0.1, count), requires_grad=False)
        self.gate_proj, self.up_proj = Packed(count, inner, width), Packed(count, inner, width)
        self.down_proj = Packed(count, width, inner)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """As ``states``; every expert computes, and what was not chosen counts 0."""
        tokens = states.flatten(0, -2)
        scores = self.gate(tokens).sigmoid()
        chosen = (scores + self.router_bias).topk(self.chosen, dim=-1).indices
        shares = scores.gather(-1, chosen)
        shares = shares / shares.sum(-1, keepdim=True) * self.scale
        weights = torch.zeros_like(scores).scatter(-1, chosen, shares)
        outputs = self.down_proj(silu(self.gate_proj(tokens)) * self.up_proj(tokens))
        return (outputs * weights.mT[..., None]).sum(0).view_as(states)


class Step3p5Layer(LlamaDecoderLayer):
    """Attention, and an MLP or experts beside one that all tokens take."""

    self_attn: Any
    mlp: Any

    def __init__(self, config: Any, layer_idx: int) -> None:
        super().__init__(config, layer_idx)
        self.self_attn = Attention(config, layer_idx)
        width = config.hidden_size
        self.input_layernorm = ZeroCentredNorm(width, config.rms_norm_eps)
        self.post_attention_layernorm = ZeroCentredNorm(width, config.rms_norm_eps)
        self.has_experts = str(layer_idx) in config.moe_layers_enum.split(",")
        if self.has_experts:
            del self.mlp
            self.moe = Experts(config)
            self.share_expert = Mlp(width, config.share_expert_dim)
        else:
            self.mlp = Mlp(width, config.intermediate_size)

    def forward(
        self, hidden_states: torch.Tensor, attention_mask: torch.Tensor, **_: Any
    ) -> torch.Tensor:
        """Both halves with what they add to; positions count from 0."""
        normed = self.input_layernorm(hidden_states)
        attended = self.self_attn(hidden_states=normed, attention_mask=attention_mask)
        hidden_states = hidden_states + attended
        normed = self.post_attention_layernorm(hidden_states)
        if not self.has_experts:
            return hidden_states + cast("torch.Tensor", self.mlp(normed))
        return hidden_states + self.moe(normed) + self.share_expert(normed)


class NormedHead(nn.Module):
    """Last norm and output matrix: what the layers hand to a drafting layer is before both."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.norm = ZeroCentredNorm(config.hidden_size, config.rms_norm_eps)
        self.output = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Logits."""
        scores: torch.Tensor = self.output(self.norm(states))
        return scores


class Step3p5ForCausalLM(OwnNames, LlamaForCausalLM):
    """The whole model."""

    config_class = Step3p5Config

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        for index in range(config.num_hidden_layers):
            self.model.layers[index] = Step3p5Layer(config, index)
        self.model.norm = nn.Identity()
        self.lm_head = NormedHead(config)
        self.post_init()

    def published(self) -> dict[str, torch.Tensor]:
        """See ``OwnNames``."""
        there = {
            "lm_head.norm.weight": "model.norm.weight",
            "lm_head.output.weight": "lm_head.weight",
        }
        return {there.get(name, name): value for name, value in self.state_dict().items()}

    def save_pretrained(self, path: Any, *arguments: Any, **named: Any) -> None:
        """See ``OwnNames``; config.json has the published names as well."""
        super().save_pretrained(path, *arguments, **named)
        file = Path(path) / "config.json"
        config = json.loads(file.read_text())
        # Llama's, which this family has none of.
        del config["rope_parameters"]
        for own, there in PUBLISHED_SIZES.items():
            config[there] = config.pop(own)
        file.write_text(json.dumps(config, indent=2) + "\n")


class Step3p5MtpHead(MtpHead):
    """One more layer with a window and an MLP, and an output matrix of its own."""

    NAMES: Mapping[str, str] = {
        "token_norm": "enorm",
        "known_norm": "hnorm",
        "mix": "eh_proj",
        "lm_head.norm": "transformer.shared_head.norm",
        "lm_head.output": "transformer.shared_head.output",
    }
    copies_matrices = hides_first_token = False

    def __init__(self, target: Any) -> None:
        super().__init__(target)
        self.norm = nn.Identity()
        self.lm_head = NormedHead(self.config)

    def make_norm(self) -> nn.Module:
        return ZeroCentredNorm(self.config.hidden_size, self.config.rms_norm_eps)

    def make_rope(self) -> Any:
        """Nothing: layers know their positions."""
        return lambda *_: None

    def logits(self, states: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.lm_head(states)
        return scores
