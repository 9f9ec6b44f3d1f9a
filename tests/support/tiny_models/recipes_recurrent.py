# SPDX-License-Identifier: Apache-2.0
"""The tiny models with recurrent states beside attention.

A state of 4 heads of 64 by 64 is as many bytes as the keys of 128 tokens with 2 heads of 64, so
vllm-ascend, which makes them equal, keeps blocks of 128 tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.support.tiny_models.recipe import MAX_POSITIONS, RecurrentRecipe

_GATED_DELTA_NET: Mapping[str, Any] = {
    "head_dim": 64,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
}

_EXPERTS: Mapping[str, Any] = {
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 64,
    "num_experts_per_tok": 2,
}

# Of the 8 frequencies of a head, for text, rows and columns; text has one position.
_ROPE_OF_QWEN3_5: Mapping[str, Any] = {
    "rope_type": "default",
    "rope_theta": 10000.0,
    "partial_rotary_factor": 0.25,
    "mrope_section": [4, 2, 2],
    "mrope_interleaved": True,
}

_SHORT_CONVOLUTION: Mapping[str, Any] = {
    "head_dim": 64,
    "conv_L_cache": 3,
    "block_auto_adjust_ff_dim": False,
    "norm_eps": 1e-5,
    # vLLM has no other form of this family.
    "tie_word_embeddings": True,
}

_MAMBA_2: Mapping[str, Any] = {
    "attention_multiplier": 0.125,
    "mamba_d_head": 64,
    "mamba_d_state": 32,
    # Small, so that short prompts have several chunks; the least that Triton multiplies.
    "mamba_chunk_size": 16,
}

RECURRENT = (
    RecurrentRecipe(
        name="qwen3_next",
        model_type="qwen3_next",
        # Two layers with states, so that there are more groups of states than of attention.
        architecture={
            "num_hidden_layers": 3,
            "layer_types": ["linear_attention", "linear_attention", "full_attention"],
            "intermediate_size": 256,
            "num_experts": 8,
            **_EXPERTS,
            **_GATED_DELTA_NET,
        },
        steps=140,
    ),
    RecurrentRecipe(
        name="qwen3_next_draft",
        model_type="qwen3_next",
        # Experts in one layer only; vLLM takes none of this family that has no experts at all.
        architecture={
            "hidden_size": 64,
            "num_attention_heads": 2,
            "layer_types": ["linear_attention", "full_attention"],
            "intermediate_size": 128,
            "num_experts": 4,
            "mlp_only_layers": [0],
            **_EXPERTS,
            **_GATED_DELTA_NET,
        },
        steps=250,
        learning_rate=0.02,
    ),
    RecurrentRecipe(
        name="qwen3_5",
        model_type="qwen3_5_text",
        architecture={
            "layer_types": ["linear_attention", "full_attention"],
            "intermediate_size": 256,
            "rope_parameters": _ROPE_OF_QWEN3_5,
            **_GATED_DELTA_NET,
        },
        steps=240,
    ),
    RecurrentRecipe(
        name="qwen3_5_moe",
        model_type="qwen3_5_moe_text",
        architecture={
            "layer_types": ["linear_attention", "full_attention"],
            "rope_parameters": _ROPE_OF_QWEN3_5,
            "num_experts": 8,
            **_EXPERTS,
            **_GATED_DELTA_NET,
        },
        steps=200,
    ),
    RecurrentRecipe(
        name="lfm2",
        model_type="lfm2",
        architecture={
            "num_hidden_layers": 3,
            "layer_types": ["conv", "full_attention", "conv"],
            "num_attention_heads": 2,
            "intermediate_size": 256,
            # Attributes of published checkpoints that the configuration class does not know.
            "conv_dim": 128,
            "block_dim": 128,
            **_SHORT_CONVOLUTION,
        },
        steps=250,
        text_tokens=768,
        # Its attention counts the letters.
        decks=8,
    ),
    RecurrentRecipe(
        name="granite4",
        model_type="granitemoehybrid",
        architecture={
            "num_hidden_layers": 3,
            "layer_types": ["mamba", "attention", "mamba"],
            "num_attention_heads": 2,
            "intermediate_size": 64,
            "shared_intermediate_size": 128,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "mamba_n_heads": 4,
            **_MAMBA_2,
        },
        steps=140,
    ),
    RecurrentRecipe(
        name="kimi_linear",
        model_type="kimi_linear",
        # Sizes of a key, a value and a latent are the least that operators take.
        architecture={
            "num_attention_heads": 2,
            "intermediate_size": 256,
            "kv_lora_rank": 512,
            "q_lora_rank": None,
            "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64,
            "v_head_dim": 128,
            "mla_use_nope": True,
            "num_experts": 0,
            "num_experts_per_token": 1,
            "num_shared_experts": 0,
            "first_k_dense_replace": 2,
            "model_max_length": MAX_POSITIONS,
            "architectures": ["KimiLinearForCausalLM"],
            # Layers are counted from 1 here.
            "linear_attn_config": {
                "kda_layers": [1],
                "full_attn_layers": [2],
                "num_heads": 2,
                "head_dim": 128,
                "short_conv_kernel_size": 4,
                "use_full_rank_gate": True,
            },
        },
        steps=140,
    ),
    RecurrentRecipe(
        name="nemotron_h",
        model_type="nemotron_h",
        # M is Mamba2, E are experts, * is attention; without rotation, so states tell positions.
        architecture={
            "hybrid_override_pattern": "ME*M",
            "head_dim": 64,
            "num_attention_heads": 2,
            "intermediate_size": 128,
            "mamba_num_heads": 4,
            "mamba_head_dim": 64,
            "ssm_state_size": 32,
            "n_groups": 2,
            "chunk_size": 16,
            "n_routed_experts": 8,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 64,
            "moe_shared_expert_intermediate_size": 128,
        },
        steps=140,
    ),
)
"""All of them."""
