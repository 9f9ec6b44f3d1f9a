# SPDX-License-Identifier: Apache-2.0
"""Kimi-Linear in plain torch, and a tiny checkpoint of it: the only judge of this family.

transformers 5.5.4 does not have it, so what an engine says is compared with this reading of the
paper ("Kimi Linear", 2025) and of the names in the published checkpoints. Weights are random; the
decays are set so that states remember hundreds of tokens.

Layers of Kimi delta attention (KDA): see ``delta_attention``. Layers of latent attention (MLA)
rotate nothing. All layers have a dense MLP.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import conv1d, embedding, rms_norm, silu, softplus

KDA_HEADS, KDA_SIZE, WINDOW = 2, 64, 4
HEADS, NOPE, ROPE, VALUE, LATENT = 2, 128, 64, 128, 512
EPSILON = 1e-5

CONFIG: dict[str, Any] = {
    "architectures": ["KimiLinearForCausalLM"],
    "model_type": "kimi_linear",
    "dtype": "float32",
    "vocab_size": 264,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": HEADS,
    "num_key_value_heads": HEADS,
    "head_dim": NOPE + ROPE,
    "kv_lora_rank": LATENT,
    "q_lora_rank": None,
    "qk_nope_head_dim": NOPE,
    "qk_rope_head_dim": ROPE,
    "v_head_dim": VALUE,
    "mla_use_nope": True,
    "rms_norm_eps": EPSILON,
    "max_position_embeddings": 1024,
    "model_max_length": 1024,
    "num_experts": 0,
    "num_experts_per_token": 1,
    "num_shared_experts": 0,
    "first_k_dense_replace": 3,
    "bos_token_id": 256,
    "eos_token_id": 257,
    "pad_token_id": 258,
    # Layers are counted from 1 here.
    "linear_attn_config": {
        "kda_layers": [1, 2],
        "full_attn_layers": [3],
        "num_heads": KDA_HEADS,
        "head_dim": KDA_SIZE,
        "short_conv_kernel_size": WINDOW,
    },
}


def shapes() -> dict[str, tuple[int, ...]]:
    """Names and shapes of the checkpoint's matrices."""
    width, inner = CONFIG["hidden_size"], CONFIG["intermediate_size"]
    kda = KDA_HEADS * KDA_SIZE
    found: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (CONFIG["vocab_size"], width),
        "lm_head.weight": (CONFIG["vocab_size"], width),
    }
    for layer in range(CONFIG["num_hidden_layers"]):
        own: dict[str, tuple[int, ...]] = {
            "mlp.gate_proj": (inner, width),
            "mlp.up_proj": (inner, width),
            "mlp.down_proj": (width, inner),
        }
        if is_recurrent(layer):
            own |= {f"self_attn.{part}_proj": (kda, width) for part in "qkv"}
            own |= {f"self_attn.{part}_conv1d": (kda, 1, WINDOW) for part in "qkv"}
            own |= {f"self_attn.{part}_a_proj": (KDA_SIZE, width) for part in "fg"}
            own |= {f"self_attn.{part}_b_proj": (kda, KDA_SIZE) for part in "fg"}
            own |= {"self_attn.b_proj": (KDA_HEADS, width), "self_attn.o_proj": (width, kda)}
        else:
            own |= {
                "self_attn.q_proj": (HEADS * (NOPE + ROPE), width),
                "self_attn.kv_a_proj_with_mqa": (LATENT + ROPE, width),
                "self_attn.kv_b_proj": (HEADS * (NOPE + VALUE), LATENT),
                "self_attn.o_proj": (width, HEADS * VALUE),
            }
        found |= {f"model.layers.{layer}.{name}.weight": shape for name, shape in own.items()}
    return found


def is_recurrent(layer: int) -> bool:
    """Whether the layer, counted from 0, is one of KDA."""
    return layer + 1 in CONFIG["linear_attn_config"]["kda_layers"]


def random_weights(seed: int) -> dict[str, torch.Tensor]:
    """Weights that let states matter for the choice of tokens."""
    generator = torch.Generator().manual_seed(seed)
    weights = {
        name: torch.randn(shape, generator=generator) * (0.5 if "conv1d" in name else 0.12)
        for name, shape in shapes().items()
    }
    weights["model.norm.weight"] = torch.ones(CONFIG["hidden_size"])
    for layer in range(CONFIG["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{prefix}{norm}.weight"] = torch.ones(CONFIG["hidden_size"])
        if is_recurrent(layer):
            weights[f"{prefix}self_attn.o_norm.weight"] = torch.ones(KDA_SIZE)
            weights[f"{prefix}self_attn.A_log"] = torch.zeros(1, 1, KDA_HEADS, 1)
            # Decays of exp(-softplus(-6)) = 0.9975 for each token.
            weights[f"{prefix}self_attn.dt_bias"] = torch.full((KDA_HEADS * KDA_SIZE,), -6.0)
        else:
            weights[f"{prefix}self_attn.kv_a_layernorm.weight"] = torch.ones(LATENT)
    return weights


def write_checkpoint(path: Path, weights: dict[str, torch.Tensor]) -> None:
    """Write configuration and weights into the folder ``path``, as vLLM loads them."""
    from safetensors.torch import save_file

    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    (path / "config.json").write_text(json.dumps(CONFIG))


def logits(
    weights: dict[str, torch.Tensor], tokens: list[int], forgetting: int = 0
) -> torch.Tensor:
    """float32 ``[len(tokens), vocabulary]``; states forget all before position ``forgetting``."""
    hidden = embedding(torch.tensor(tokens), weights["model.embed_tokens.weight"])
    for layer in range(CONFIG["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        own = {
            name.removeprefix(prefix).removesuffix(".weight"): value
            for name, value in weights.items()
            if name.startswith(prefix)
        }
        normed = norm(hidden, own["input_layernorm"])
        if is_recurrent(layer):
            hidden = hidden + delta_attention(own, normed, forgetting)
        else:
            hidden = hidden + latent_attention(own, normed)
        normed = norm(hidden, own["post_attention_layernorm"])
        gated = silu(normed @ own["mlp.gate_proj"].T) * (normed @ own["mlp.up_proj"].T)
        hidden = hidden + gated @ own["mlp.down_proj"].T
    return norm(hidden, weights["model.norm.weight"]) @ weights["lm_head.weight"].T


def norm(states: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Root mean square norm over the last dimension."""
    return rms_norm(states, weight.shape, weight, EPSILON)


def delta_attention(
    own: dict[str, torch.Tensor], states: torch.Tensor, forgetting: int
) -> torch.Tensor:
    """KDA: convolved queries, keys and values; a state [key, value] per head; a gated norm.

    state = diag(a) state;  state += beta k (v - state^T k)^T;  output = state^T q
    """

    def by_head(rows: torch.Tensor) -> torch.Tensor:
        return rows.unflatten(-1, (KDA_HEADS, KDA_SIZE))

    def convolved(part: str) -> torch.Tensor:
        columns = (states @ own[f"self_attn.{part}_proj"].T).T[None]
        filters = own[f"self_attn.{part}_conv1d"]
        result = conv1d(columns, filters, padding=WINDOW - 1, groups=columns.shape[1])
        return by_head(silu(result[0, :, : len(states)].T))

    def unit(rows: torch.Tensor) -> torch.Tensor:
        return rows / (rows.square().sum(-1, keepdim=True) + 1e-6).sqrt()

    query, key, value = unit(convolved("q")) * KDA_SIZE**-0.5, unit(convolved("k")), convolved("v")
    steps = states @ own["self_attn.f_a_proj"].T @ own["self_attn.f_b_proj"].T
    rate = own["self_attn.A_log"].exp().reshape(KDA_HEADS, 1)
    decay = (-rate * by_head(softplus(steps + own["self_attn.dt_bias"]))).exp()
    beta = (states @ own["self_attn.b_proj"].T).sigmoid()
    memory = torch.zeros(KDA_HEADS, KDA_SIZE, KDA_SIZE)
    outputs = []
    for token in range(len(states)):
        if token == forgetting:
            memory = torch.zeros_like(memory)
        memory = memory * decay[token][:, :, None]
        known = torch.einsum("hkv,hk->hv", memory, key[token])
        change = (value[token] - known) * beta[token][:, None]
        memory = memory + key[token][:, :, None] * change[:, None, :]
        outputs.append(torch.einsum("hkv,hk->hv", memory, query[token]))
    if "self_attn.g_proj" in own:
        # Of full rank, as Kimi-K3's.
        gate = by_head(states @ own["self_attn.g_proj"].T)
    else:
        gate = by_head(states @ own["self_attn.g_a_proj"].T @ own["self_attn.g_b_proj"].T)
    result = norm(torch.stack(outputs), own["self_attn.o_norm"]) * gate.sigmoid()
    return result.flatten(1) @ own["self_attn.o_proj"].T


def latent_attention(own: dict[str, torch.Tensor], states: torch.Tensor) -> torch.Tensor:
    """MLA without rotation: one latent and one shared part of the keys for all heads."""
    query = (states @ own["self_attn.q_proj"].T).unflatten(-1, (HEADS, NOPE + ROPE))
    compressed = states @ own["self_attn.kv_a_proj_with_mqa"].T
    latent, shared = compressed.split([LATENT, ROPE], dim=-1)
    latent = norm(latent, own["self_attn.kv_a_layernorm"])
    expanded = (latent @ own["self_attn.kv_b_proj"].T).unflatten(-1, (HEADS, NOPE + VALUE))
    keys, values = expanded.split([NOPE, VALUE], dim=-1)
    keys = torch.cat([keys, shared[:, None].expand(-1, HEADS, -1)], dim=-1)
    scores = torch.einsum("qhd,khd->hqk", query, keys) * (NOPE + ROPE) ** -0.5
    hidden = torch.ones(len(states), len(states), dtype=torch.bool).triu(1)
    weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, values).flatten(1) @ own["self_attn.o_proj"].T
