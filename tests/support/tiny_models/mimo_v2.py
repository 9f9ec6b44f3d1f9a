# SPDX-License-Identifier: Apache-2.0
"""MiMo-V2-Flash, of which transformers 5.5.4 has no class, and its drafting layer, in plain torch.

Read from vLLM's class and the published checkpoints' configuration. Keys have more elements than
values, and a part of each key is rotated. Layers with a window have more heads of keys than the
others, another base of rotation, and a sink for each head: a logit that takes a share of the
attention and has no value. Values are scaled. The drafting layer has a window and an MLP.
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
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaMLP, LlamaRMSNorm

from tests.support.tiny_models import own_names
from tests.support.tiny_models.heads import MtpHead, separate_experts
from tests.support.tiny_models.own_names import OwnNames
from tests.support.tiny_models.plain_attention import by_head, turned, within_window

MODEL_TYPE = "mimo_v2_flash"


class MimoV2Config(LlamaConfig):
    """Llama's sizes, and those of this family as published checkpoints name them."""

    model_type = MODEL_TYPE


class Attention(nn.Module):
    """Attention whose keys and values differ in size, maybe with a window and sinks."""

    def __init__(self, config: Any, has_window: bool) -> None:
        super().__init__()
        prefix = "swa_" if has_window else ""
        sizes = {name: getattr(config, prefix + name) for name in SIZES_OF_ATTENTION}
        self.size, self.value_size = sizes["head_dim"], sizes["v_head_dim"]
        heads, groups = sizes["num_attention_heads"], sizes["num_key_value_heads"]
        self.shared = heads // groups
        self.window = config.sliding_window_size if has_window else None
        self.base = config.swa_rope_theta if has_window else config.rope_parameters["rope_theta"]
        self.rotated = int(self.size * config.partial_rotary_factor)
        self.value_scale = config.attention_value_scale
        width = config.hidden_size
        self.q_proj = nn.Linear(width, heads * self.size, bias=False)
        self.k_proj = nn.Linear(width, groups * self.size, bias=False)
        self.v_proj = nn.Linear(width, groups * self.value_size, bias=False)
        self.o_proj = nn.Linear(heads * self.value_size, width, bias=False)
        has_sinks = has_window and config.add_swa_attention_sink_bias
        # Not zeros, with which few would notice a sink of another head.
        self.attention_sink_bias = nn.Parameter(torch.linspace(-1, 1, heads)) if has_sinks else None

    def forward(self, hidden_states: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """[rows, tokens, width]; ``attention_mask`` is added to the scores."""
        query = by_head(self.q_proj(hidden_states), self.size)
        key = by_head(self.k_proj(hidden_states), self.size)
        query, key = (turned(part, self.rotated, self.base) for part in (query, key))
        value = by_head(self.v_proj(hidden_states), self.value_size) * self.value_scale
        key, value = (part.repeat_interleave(self.shared, dim=1) for part in (key, value))
        scores = query @ key.mT * self.size**-0.5 + attention_mask
        scores = within_window(scores, self.window)
        attended = (self._shares(scores) @ value).transpose(1, 2)
        states: torch.Tensor = self.o_proj(attended.flatten(-2))
        return states

    def _shares(self, scores: torch.Tensor) -> torch.Tensor:
        """What each key counts; all are less than 1 together where a sink counts as well."""
        if self.attention_sink_bias is None:
            return scores.softmax(-1)
        sinks = self.attention_sink_bias[:, None, None].expand(*scores.shape[:-1], 1)
        return torch.cat([sinks, scores], dim=-1).softmax(-1)[..., 1:]


SIZES_OF_ATTENTION = ("head_dim", "v_head_dim", "num_attention_heads", "num_key_value_heads")
"""Names in config.json, before which layers with a window have ``swa_``."""


class Router(nn.Linear):
    """The matrix that scores experts, and what is added where they are chosen."""

    def __init__(self, config: Any) -> None:
        super().__init__(config.hidden_size, config.n_routed_experts, bias=False)
        # Not trained. With zeros nobody would see whether an engine adds it.
        spread = torch.linspace(-0.1, 0.1, config.n_routed_experts)
        self.e_score_correction_bias = nn.Parameter(spread, requires_grad=False)


class Matrices(nn.Module):
    """The experts: their matrices towards ``inner`` elements, and back."""

    def __init__(self, experts: int, width: int, inner: int) -> None:
        super().__init__()
        self.gate_up_proj = nn.Parameter(torch.randn(experts, 2 * inner, width) * 0.02)
        self.down_proj = nn.Parameter(torch.randn(experts, width, inner) * 0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """[experts, tokens, width] of [tokens, width]."""
        gate, up = (tokens @ self.gate_up_proj.mT).chunk(2, dim=-1)
        return (silu(gate) * up) @ self.down_proj.mT


class Experts(nn.Module):
    """Experts chosen by a sigmoid and a bias, which has no part in their weights."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.chosen = config.num_experts_per_tok
        self.gate = Router(config)
        self.experts = Matrices(
            config.n_routed_experts, config.hidden_size, config.moe_intermediate_size
        )

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """As ``states``; every expert computes, and what was not chosen counts 0."""
        tokens = states.flatten(0, -2)
        scores = self.gate(tokens).sigmoid()
        chosen = (scores + self.gate.e_score_correction_bias).topk(self.chosen, dim=-1).indices
        shares = scores.gather(-1, chosen)
        shares = shares / shares.sum(-1, keepdim=True)
        weights = torch.zeros_like(scores).scatter(-1, chosen, shares)
        return (self.experts(tokens) * weights.mT[..., None]).sum(0).view_as(states)


class MimoV2Layer(LlamaDecoderLayer):
    """Attention, and an MLP or experts."""

    self_attn: Any
    mlp: Any

    def __init__(self, config: Any, layer_idx: int) -> None:
        super().__init__(config, layer_idx)
        self.self_attn = Attention(config, bool(config.hybrid_layer_pattern[layer_idx]))
        if config.moe_layer_freq[layer_idx]:
            self.mlp = Experts(config)

    def forward(
        self, hidden_states: torch.Tensor, attention_mask: torch.Tensor, **_: Any
    ) -> torch.Tensor:
        """Both halves with what they add to; positions count from 0."""
        return both_halves(self, self.post_attention_layernorm, hidden_states, attention_mask)


def both_halves(
    layer: Any, norm: nn.Module, states: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """Attention and what is fed behind it, each added to ``states``; ``norm`` stands between."""
    attended = layer.self_attn(hidden_states=layer.input_layernorm(states), attention_mask=mask)
    states = states + attended
    return cast("torch.Tensor", states + layer.mlp(norm(states)))


class MimoV2ForCausalLM(OwnNames, LlamaForCausalLM):
    """The whole model."""

    config_class = MimoV2Config

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        for index in range(config.num_hidden_layers):
            self.model.layers[index] = MimoV2Layer(config, index)
        self.post_init()

    def published(self) -> dict[str, torch.Tensor]:
        """See ``OwnNames``."""
        return separate_experts(self.state_dict())

    def save_pretrained(self, path: Any, *arguments: Any, **named: Any) -> None:
        """See ``OwnNames``; config.json comes with its code, and has a base of rotation."""
        super().save_pretrained(path, *arguments, **named)
        file = Path(path) / "config.json"
        config = json.loads(file.read_text())
        config["rope_theta"] = config.pop("rope_parameters")["rope_theta"]
        file.write_text(json.dumps({**config, **write_code(Path(path))}, indent=2) + "\n")


def write_code(folder: Path) -> dict[str, Any]:
    """Write the code of the configuration into ``folder``; where config.json says that it is."""
    return own_names.write_code(
        folder,
        "configuration_mimo_v2_flash",
        family="MiMo-V2-Flash",
        name="MiMoV2FlashConfig",
        model_type=MODEL_TYPE,
    )


class MimoV2MtpHead(MtpHead):
    """One more layer with a window, sinks and an MLP, before the target's output matrix."""

    PREFIX = "model.mtp.layers.0."
    NAMES: Mapping[str, str] = {**MtpHead.NAMES, "norm": "final_layernorm"}
    copies_matrices = hides_first_token = False

    def make_layer(self) -> nn.Module:
        return DraftingLayer(self.config)

    def make_rope(self) -> Any:
        """Nothing: the layer knows its positions."""
        return lambda *_: None


class DraftingLayer(nn.Module):
    """Attention with a window, and an MLP, by the names of the drafting layer."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.input_layernorm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.self_attn = Attention(config, has_window=True)
        self.pre_mlp_layernorm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.mlp = LlamaMLP(config)

    def forward(
        self, hidden_states: torch.Tensor, attention_mask: torch.Tensor, **_: Any
    ) -> torch.Tensor:
        """Both halves with what they add to."""
        return both_halves(self, self.pre_mlp_layernorm, hidden_states, attention_mask)
