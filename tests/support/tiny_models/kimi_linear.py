# SPDX-License-Identifier: Apache-2.0
"""Kimi delta attention (KDA) beside latent attention, to be trained; transformers has neither.

As Kimi-Linear and the language model of Kimi-K3: ``tests.support.kimi_linear`` computes the same
one token after another, for a test of its own. Here the tokens of a chunk are one triangular solve.
Checkpoints have the names that vLLM 0.30 loads, which takes an output gate of full rank alone, as
Kimi-K3's. vllm-ascend 0.23.0 keeps one state only, so that no draft beside this family is served.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.functional import pad, silu, softplus
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRMSNorm

from tests.support.tiny_models.own_names import OwnNames
from tests.support.tiny_models.plain_attention import in_chunks, scanned, unit

MODEL_TYPE = "kimi_linear"

CHUNK = 16
"""Tokens of one triangular solve."""

LEAST = -60.0
"""Log of what is left of a channel over a chunk, from which on scores are one product."""

TIME_STEPS = (5e-2, 1.0)
"""Range of the first decays of channels for each token, as logarithms.

Ten times those of published models: with these, states count everything and attention nothing."""


class KimiLinearConfig(LlamaConfig):
    """Llama's sizes, and those of both kinds of attention as published checkpoints name them."""

    model_type = MODEL_TYPE


class DeltaAttention(nn.Module):
    """KDA: the delta rule with a decay for each channel of the keys.

    Per head, of a state [key, value]:  state = diag(decay) state;
    state += rate key (value - state^T key)^T;  output = state^T query.
    """

    def __init__(self, config: Any) -> None:
        super().__init__()
        sizes = config.linear_attn_config
        self.heads, self.size = sizes["num_heads"], sizes["head_dim"]
        self.window = sizes["short_conv_kernel_size"]
        width, inner = config.hidden_size, self.heads * self.size
        for part in "qkv":
            setattr(self, f"{part}_proj", nn.Linear(width, inner, bias=False))
            setattr(
                self,
                f"{part}_conv1d",
                nn.Conv1d(inner, inner, self.window, groups=inner, bias=False),
            )
        self.f_a_proj = nn.Linear(width, self.size, bias=False)
        self.f_b_proj = nn.Linear(self.size, inner, bias=False)
        self.b_proj = nn.Linear(width, self.heads, bias=False)
        self.g_proj = nn.Linear(width, inner, bias=False)
        self.o_proj = nn.Linear(inner, width, bias=False)
        self.o_norm = LlamaRMSNorm(self.size, eps=config.rms_norm_eps)
        # By other names than the checkpoint's: ``recurrent`` sets parameters of those names as
        # other families have them, one for each head.
        self.log_rate = nn.Parameter(torch.zeros(self.heads))
        low, high = torch.tensor(TIME_STEPS).log().tolist()
        steps = torch.linspace(low, high, self.size).exp().repeat(self.heads)
        self.step_bias = nn.Parameter(steps + torch.log(-torch.expm1(-steps)))

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """[rows, tokens, width], all from a zero state."""
        query, key, value = (self._convolved(part, hidden_states) for part in "qkv")
        steps = softplus(self.f_b_proj(self.f_a_proj(hidden_states)) + self.step_bias)
        decay = -self._by_head(steps) * self.log_rate.exp()[:, None]
        rate = self.b_proj(hidden_states).sigmoid()
        output = delta_rule(unit(query) * self.size**-0.5, unit(key), value, decay, rate)
        gated = self.o_norm(output) * self._by_head(self.g_proj(hidden_states)).sigmoid()
        states: torch.Tensor = self.o_proj(gated.flatten(-2))
        return states

    def _by_head(self, rows: torch.Tensor) -> torch.Tensor:
        return rows.unflatten(-1, (self.heads, self.size))

    def _convolved(self, part: str, states: torch.Tensor) -> torch.Tensor:
        columns = getattr(self, f"{part}_proj")(states).transpose(1, 2)
        filtered = getattr(self, f"{part}_conv1d")(pad(columns, (self.window - 1, 0)))
        return self._by_head(silu(filtered).transpose(1, 2))


def delta_rule(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    decay: torch.Tensor,
    rate: torch.Tensor,
) -> torch.Tensor:
    """Outputs as ``value``; all [rows, tokens, heads, size], ``rate`` without a size.

    What a token writes is  u_t = rate_t (v_t - sum over s < t of (k_t . decay k_s) u_s), and what
    the state of the chunks before adds to that.
    """
    length = query.shape[1]
    query, key, value, decay, rate = (
        in_chunks(part, CHUNK) for part in (query, key, value, decay, rate)
    )
    total = decay.cumsum(-2)
    scores = quick_scores if float(total.detach().min()) > LEAST else slow_scores
    lower = scores(key, key, total) * rate[..., None]
    within = scores(query, key, total)
    from_state = rate[..., None] * key * total.exp()
    wanted = torch.cat([value * rate[..., None], from_state], dim=-1)
    solved = torch.linalg.solve_triangular(lower.tril(-1), wanted, upper=False, unitriangular=True)
    written, forgotten = solved.split([value.shape[-1], key.shape[-1]], dim=-1)
    asked, kept = query * total.exp(), total[..., -1, :].exp()[..., None]
    to_state = key * (total[..., -1:, :] - total).exp()
    return scanned(written, forgotten, asked, within, kept, to_state)[:, :length]


def slow_scores(asking: torch.Tensor, key: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
    """How much of each key, faded since, each asking vector of its chunk finds: triangular."""
    later = torch.ones(CHUNK, CHUNK, dtype=torch.bool).tril()[:, :, None]
    between = (total[..., :, None, :] - total[..., None, :, :]).masked_fill(~later, -torch.inf)
    return (asking[..., :, None, :] * key[..., None, :, :] * between.exp()).sum(-1)


def quick_scores(asking: torch.Tensor, key: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
    """The same as one product, of factors that are in the range of float32 down to ``LEAST``."""
    return ((asking * total.exp()) @ (key * (-total).exp()).mT).tril()


class LatentAttention(nn.Module):
    """MLA without rotation: a latent for each token, and a part of the keys for all heads."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.heads, self.latent = config.num_attention_heads, config.kv_lora_rank
        self.nope, self.value = config.qk_nope_head_dim, config.v_head_dim
        self.shared = config.qk_rope_head_dim
        width, size = config.hidden_size, self.nope + self.shared
        self.q_proj = nn.Linear(width, self.heads * size, bias=False)
        self.kv_a_proj_with_mqa = nn.Linear(width, self.latent + self.shared, bias=False)
        self.kv_a_layernorm = LlamaRMSNorm(self.latent, eps=config.rms_norm_eps)
        self.kv_b_proj = nn.Linear(self.latent, self.heads * (self.nope + self.value), bias=False)
        self.o_proj = nn.Linear(self.heads * self.value, width, bias=False)

    def forward(self, hidden_states: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """[rows, tokens, width]; ``attention_mask`` is added to the scores."""
        query = self.q_proj(hidden_states).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        compressed = self.kv_a_proj_with_mqa(hidden_states)
        latent, shared = compressed.split([self.latent, self.shared], dim=-1)
        expanded = self.kv_b_proj(self.kv_a_layernorm(latent)).unflatten(-1, (self.heads, -1))
        own, value = expanded.transpose(1, 2).split([self.nope, self.value], dim=-1)
        key = torch.cat([own, shared[:, None].expand(-1, self.heads, -1, -1)], dim=-1)
        scores = query @ key.mT * query.shape[-1] ** -0.5 + attention_mask
        attended = scores.softmax(-1) @ value
        states: torch.Tensor = self.o_proj(attended.transpose(1, 2).flatten(-2))
        return states


class KimiLinearLayer(LlamaDecoderLayer):
    """One of both kinds of attention, and Llama's MLP."""

    self_attn: Any
    mlp: Any

    def __init__(self, config: Any, layer_idx: int) -> None:
        super().__init__(config, layer_idx)
        del self.self_attn
        # Layers are counted from 1 there.
        self.is_recurrent = layer_idx + 1 in config.linear_attn_config["kda_layers"]
        if self.is_recurrent:
            self.linear_attn = DeltaAttention(config)
        else:
            self.self_attn = LatentAttention(config)

    def forward(
        self, hidden_states: torch.Tensor, attention_mask: torch.Tensor, **_: Any
    ) -> torch.Tensor:
        """As Llama's, without positions."""
        normed = self.input_layernorm(hidden_states)
        if self.is_recurrent:
            attended = self.linear_attn(hidden_states=normed)
        else:
            attended = self.self_attn(hidden_states=normed, attention_mask=attention_mask)
        hidden_states = hidden_states + attended
        output: torch.Tensor = hidden_states + self.mlp(
            self.post_attention_layernorm(hidden_states)
        )
        return output


class KimiLinearForCausalLM(OwnNames, LlamaForCausalLM):
    """The whole model."""

    config_class = KimiLinearConfig

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        for index in range(config.num_hidden_layers):
            self.model.layers[index] = KimiLinearLayer(config, index)
        self.post_init()

    def published(self) -> dict[str, torch.Tensor]:
        """See ``OwnNames``."""
        found = {}
        for name, value in self.state_dict().items():
            stem, _, last = name.replace(".linear_attn.", ".self_attn.").rpartition(".")
            if last == "log_rate":
                found[f"{stem}.A_log"] = value.reshape(1, 1, -1, 1)
            elif last == "step_bias":
                found[f"{stem}.dt_bias"] = value
            else:
                found[f"{stem}.{last}"] = value
        return found | packed_filters(found)


def packed_filters(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The filters once more, as vllm-ascend 0.30.0rc2 packs them when it has loaded the others.

    They are a parameter of its layer, and vLLM wants a value for each of a model that is not
    quantised. Published checkpoints are quantised.
    """
    found = {}
    for name in weights:
        if name.endswith(".q_conv1d.weight"):
            stem = name.removesuffix("q_conv1d.weight")
            parts = [weights[f"{stem}{part}_conv1d.weight"] for part in "qkv"]
            found[f"{stem}ascend_conv1d_weight"] = torch.cat(parts)[:, 0].T.contiguous()
    return found
