# SPDX-License-Identifier: Apache-2.0
"""Configurations as they were published, as far as vLLM reads them; names as on the hub."""

from __future__ import annotations

from typing import Any

Config = dict[str, Any]


def _dense(model_type: str, cls: str, sizes: tuple[int, ...], **more: Any) -> Config:
    """``sizes``: hidden, inner, layers, heads, heads of keys, vocabulary, positions."""
    names: tuple[str, ...] = ("hidden_size", "intermediate_size", "num_hidden_layers")
    names += ("num_attention_heads", "num_key_value_heads", "vocab_size")
    names += ("max_position_embeddings",)
    values = dict(zip(names, sizes, strict=True))
    return {
        "architectures": [cls],
        "model_type": model_type,
        "torch_dtype": "bfloat16",
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        **values,
        **more,
    }


def _llama(*sizes: int, **more: Any) -> Config:
    return _dense("llama", "LlamaForCausalLM", sizes, **more)


def _qwen2(*sizes: int, **more: Any) -> Config:
    own: Config = {"rope_theta": 1e6, "use_sliding_window": False, "sliding_window": sizes[-1]}
    own["max_window_layers"] = sizes[2]
    return _dense("qwen2", "Qwen2ForCausalLM", sizes, **{**own, **more})


def _qwen3(*sizes: int, **more: Any) -> Config:
    own: Config = {"head_dim": 128, "rope_theta": 1e6, "use_sliding_window": False}
    own |= {"attention_bias": False, "sliding_window": None, "max_window_layers": sizes[2]}
    return _dense("qwen3", "Qwen3ForCausalLM", sizes, **{**own, **more})


def _qwen3_moe(*sizes: int, experts: int, inner: int, **more: Any) -> Config:
    own: Config = {
        "num_experts": experts,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": inner,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "router_aux_loss_coef": 0.001,
    }
    values = _qwen3(*sizes, **{**own, **more})
    return {**values, "model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"]}


LLAMA3_ROPE = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
}
DEEPSEEK_V3: Config = {
    **_dense("deepseek_v3", "DeepseekV3ForCausalLM", (7168, 18432, 61, 128, 128, 129280, 163840)),
    "moe_intermediate_size": 2048,
    "num_nextn_predict_layers": 1,
    "n_shared_experts": 1,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "ep_size": 1,
    "routed_scaling_factor": 2.5,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "qk_nope_head_dim": 128,
    "topk_method": "noaux_tc",
    "n_group": 8,
    "topk_group": 4,
    "moe_layer_freq": 1,
    "first_k_dense_replace": 3,
    "norm_topk_prob": True,
    "scoring_func": "sigmoid",
    "rope_theta": 10000,
    "rope_scaling": {
        "beta_fast": 32,
        "beta_slow": 1,
        "factor": 40,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096,
        "type": "yarn",
    },
}
FP8: Config = {
    "activation_scheme": "dynamic",
    "fmt": "e4m3",
    "quant_method": "fp8",
    "weight_block_size": [128, 128],
}
GPT_OSS: Config = {
    **_dense("gpt_oss", "GptOssForCausalLM", (2880, 2880, 24, 64, 8, 201088, 131072)),
    "head_dim": 64,
    "layer_types": ["sliding_attention", "full_attention"] * 12,
    "sliding_window": 128,
    "num_local_experts": 32,
    "num_experts_per_tok": 4,
    "experts_per_token": 4,
    "attention_bias": True,
    "swiglu_limit": 7.0,
    "rope_theta": 150000,
    "initial_context_length": 4096,
    "rope_scaling": {
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "factor": 32.0,
        "original_max_position_embeddings": 4096,
        "rope_type": "yarn",
        "truncate": False,
    },
}
MXFP4: Config = {
    "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "lm_head"],
    "quant_method": "mxfp4",
}
GRANITE_4_H: Config = {
    **_dense(
        "granitemoehybrid", "GraniteMoeHybridForCausalLM", (4096, 768, 40, 32, 8, 100352, 131072)
    ),
    "layer_types": ["attention" if layer in (5, 15, 25, 35) else "mamba" for layer in range(40)],
    "mamba_n_heads": 128,
    "mamba_d_head": 64,
    "mamba_d_state": 128,
    "mamba_n_groups": 1,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_chunk_size": 256,
    "mamba_conv_bias": True,
    "mamba_proj_bias": False,
    "num_local_experts": 72,
    "num_experts_per_tok": 10,
    "shared_intermediate_size": 1536,
    "position_embedding_type": "nope",
    "attention_multiplier": 0.0078125,
    "embedding_multiplier": 12,
    "residual_multiplier": 0.22,
    "logits_scaling": 16,
    "tie_word_embeddings": True,
}
QWEN3_NEXT: Config = {
    **_qwen3(2048, 5120, 48, 16, 2, 151936, 262144),
    "model_type": "qwen3_next",
    "architectures": ["Qwen3NextForCausalLM"],
    "head_dim": 256,
    "partial_rotary_factor": 0.25,
    "rope_theta": 10000000,
    "full_attention_interval": 4,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_value_head_dim": 128,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "norm_topk_prob": True,
}
EAGLE3_LLAMA_8B: Config = {
    **_llama(4096, 14336, 1, 32, 8, 128256, 2048),
    "architectures": ["LlamaForCausalLMEagle3"],
    "draft_vocab_size": 32000,
    "rope_theta": 500000.0,
    "torch_dtype": "float16",
}

PUBLISHED: dict[str, Config] = {
    "Llama-3.1-8B-Instruct": _llama(
        *(4096, 14336, 32, 32, 8, 128256, 131072), rope_theta=500000.0, rope_scaling=LLAMA3_ROPE
    ),
    "Llama-3.3-70B-Instruct": _llama(
        *(8192, 28672, 80, 64, 8, 128256, 131072), rope_theta=500000.0, rope_scaling=LLAMA3_ROPE
    ),
    "Llama-3.2-1B-Instruct": _llama(
        *(2048, 8192, 16, 32, 8, 128256, 131072),
        head_dim=64,
        rope_theta=500000.0,
        rope_scaling={**LLAMA3_ROPE, "factor": 32.0},
        tie_word_embeddings=True,
    ),
    "Qwen2.5-7B-Instruct": _qwen2(3584, 18944, 28, 28, 4, 152064, 32768),
    "Qwen2.5-72B-Instruct": _qwen2(8192, 29568, 80, 64, 8, 152064, 32768),
    "Qwen2.5-1.5B-Instruct": _qwen2(1536, 8960, 28, 12, 2, 151936, 32768, tie_word_embeddings=True),
    "Qwen2.5-0.5B-Instruct": _qwen2(896, 4864, 24, 14, 2, 151936, 32768, tie_word_embeddings=True),
    "Qwen3-0.6B": _qwen3(1024, 3072, 28, 16, 8, 151936, 40960, tie_word_embeddings=True),
    "Qwen3-1.7B": _qwen3(2048, 6144, 28, 16, 8, 151936, 40960, tie_word_embeddings=True),
    "Qwen3-8B": _qwen3(4096, 12288, 36, 32, 8, 151936, 40960),
    "Qwen3-14B": _qwen3(5120, 17408, 40, 40, 8, 151936, 40960),
    "Qwen3-32B": _qwen3(5120, 25600, 64, 64, 8, 151936, 40960),
    "Qwen3-30B-A3B": _qwen3_moe(2048, 6144, 48, 32, 4, 151936, 40960, experts=128, inner=768),
    "Qwen3-235B-A22B": _qwen3_moe(4096, 12288, 94, 64, 4, 151936, 40960, experts=128, inner=1536),
    "Qwen3-Next-80B-A3B-Instruct": QWEN3_NEXT,
    "DeepSeek-V3": {**DEEPSEEK_V3, "quantization_config": FP8},
    "DeepSeek-V3-bf16": DEEPSEEK_V3,
    "gpt-oss-20b": {**GPT_OSS, "quantization_config": MXFP4},
    "gpt-oss-20b-bf16": GPT_OSS,
    "granite-4.0-h-small": GRANITE_4_H,
    "granite-4.0-h-1b": {
        **GRANITE_4_H,
        "hidden_size": 1536,
        "num_attention_heads": 12,
        "num_key_value_heads": 4,
        "mamba_n_heads": 48,
        "num_local_experts": 0,
        "num_experts_per_tok": 0,
        "shared_intermediate_size": 4096,
        "intermediate_size": 4096,
    },
    "EAGLE3-LLaMA3.1-Instruct-8B": EAGLE3_LLAMA_8B,
    "Qwen3-32B_eagle3": {
        **_llama(5120, 25600, 1, 64, 8, 151936, 40960),
        "architectures": ["LlamaForCausalLMEagle3"],
        "head_dim": 128,
        "draft_vocab_size": 32000,
        "rope_theta": 1000000,
    },
    "medusa": {
        "architectures": ["MedusaModel"],
        "model_type": "medusa",
        "hidden_size": 4096,
        "vocab_size": 128256,
        "num_heads": 3,
        "num_hidden_layers": 1,
        "torch_dtype": "bfloat16",
    },
    "Nemotron-H-8B": {
        **_dense("nemotron_h", "NemotronHForCausalLM", (4096, 21504, 52, 32, 8, 131072, 8192)),
        "hybrid_override_pattern": "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-",
        "head_dim": 128,
        "attention_head_dim": 128,
        "mamba_num_heads": 128,
        "mamba_head_dim": 64,
        "ssm_state_size": 128,
        "n_groups": 8,
        "conv_kernel": 4,
        "expand": 2,
        "chunk_size": 128,
        "mlp_hidden_act": "relu2",
        "use_conv_bias": True,
    },
    "gemma-3-27b-it": {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "model_type": "gemma3",
        "torch_dtype": "bfloat16",
        "image_token_index": 262144,
        "mm_tokens_per_image": 256,
        "text_config": {
            "model_type": "gemma3_text",
            "hidden_size": 5376,
            "intermediate_size": 21504,
            "num_hidden_layers": 62,
            "num_attention_heads": 32,
            "num_key_value_heads": 16,
            "head_dim": 128,
            "query_pre_attn_scalar": 168,
            "sliding_window": 1024,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        },
        "vision_config": {
            "model_type": "siglip_vision_model",
            "hidden_size": 1152,
            "image_size": 896,
            "intermediate_size": 4304,
            "num_attention_heads": 16,
            "num_hidden_layers": 27,
            "patch_size": 14,
            "vision_use_head": False,
        },
    },
    "LFM2-1.2B": {
        **_dense("lfm2", "Lfm2ForCausalLM", (2048, 12288, 16, 32, 8, 65536, 128000)),
        "block_auto_adjust_ff_dim": True,
        "block_dim": 2048,
        "block_ff_dim": 12288,
        "block_ffn_dim_multiplier": 1.0,
        "block_multiple_of": 256,
        "block_norm_eps": 1e-5,
        "block_use_swiglu": True,
        "conv_L_cache": 3,
        "conv_bias": False,
        "conv_dim": 2048,
        "conv_dim_out": 2048,
        "full_attn_idxs": [2, 5, 8, 10, 12, 14],
        "layer_types": [
            "full_attention" if layer in (2, 5, 8, 10, 12, 14) else "conv" for layer in range(16)
        ],
        "tie_word_embeddings": True,
    },
    "Mixtral-8x7B-Instruct-v0.1": _dense(
        *("mixtral", "MixtralForCausalLM", (4096, 14336, 32, 32, 8, 32000, 32768)),
        num_local_experts=8,
        num_experts_per_tok=2,
        sliding_window=None,
        rope_theta=1e6,
    ),
    "Kimi-K2-Instruct-bf16": {
        **DEEPSEEK_V3,
        "num_attention_heads": 64,
        "num_key_value_heads": 64,
        "n_routed_experts": 384,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        "routed_scaling_factor": 2.827,
        "max_position_embeddings": 131072,
        "vocab_size": 163840,
        "num_nextn_predict_layers": 0,
    },
    "DeepSeek-V2-Lite-Chat": {
        **_dense("deepseek_v2", "DeepseekV2ForCausalLM", (2048, 10944, 27, 16, 16, 102400, 163840)),
        "moe_intermediate_size": 1408,
        "n_shared_experts": 2,
        "n_routed_experts": 64,
        "num_experts_per_tok": 6,
        "routed_scaling_factor": 1.0,
        "kv_lora_rank": 512,
        "q_lora_rank": None,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "qk_nope_head_dim": 128,
        "topk_method": "greedy",
        "n_group": 1,
        "topk_group": 1,
        "moe_layer_freq": 1,
        "first_k_dense_replace": 1,
        "norm_topk_prob": False,
        "scoring_func": "softmax",
        "rope_theta": 10000,
        "rope_scaling": {
            "beta_fast": 32,
            "beta_slow": 1,
            "factor": 40,
            "mscale": 0.707,
            "mscale_all_dim": 0.707,
            "original_max_position_embeddings": 4096,
            "type": "yarn",
        },
    },
    "GLM-4.5-Air": {
        **_dense("glm4_moe", "Glm4MoeForCausalLM", (4096, 10944, 46, 96, 8, 151552, 131072)),
        "head_dim": 128,
        "moe_intermediate_size": 1408,
        "n_routed_experts": 128,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        "num_nextn_predict_layers": 1,
        "norm_topk_prob": True,
        "partial_rotary_factor": 0.5,
        "rope_theta": 1000000,
        "attention_bias": True,
        "use_qk_norm": False,
        "routed_scaling_factor": 1.0,
    },
}
"""Name -> config.json."""
