# SPDX-License-Identifier: Apache-2.0
"""Models that mistakes are made with: published ones, something in their config.json changed."""

from __future__ import annotations

from typing import Any

from tests.support import hosts

V4: dict[str, Any] = {
    "architectures": ["DeepseekV4ForCausalLM"],
    "model_type": "deepseek_v4",
    "num_hidden_layers": 43,
    "num_attention_heads": 64,
    "num_key_value_heads": 1,
    "head_dim": 512,
    "kv_lora_rank": None,
    "index_head_dim": 128,
    "index_topk": 512,
    "sliding_window": 128,
    "compress_ratios": [0, 0, *[4, 128] * 20, 4],
}
"""DeepSeek-V4-Flash: what sizes its caches."""
QWEN3_5: dict[str, Any] = {
    "architectures": ["Qwen3_5ForConditionalGeneration"],
    "model_type": "qwen3_5",
    "text_config": {
        "model_type": "qwen3_5_text",
        "hidden_size": 5120,
        "num_hidden_layers": 64,
        "num_attention_heads": 24,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 48,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "mamba_ssm_dtype": "float32",
        "vocab_size": 151936,
        "max_position_embeddings": 262144,
    },
}
"""Qwen3.5-27B, with the vocabulary of Qwen3."""
QWEN3_VL: dict[str, Any] = {
    "architectures": ["Qwen3VLForConditionalGeneration"],
    "model_type": "qwen3_vl",
    "vision_config": {"depth": 27},
    "text_config": {
        "model_type": "qwen3_vl_text",
        "hidden_size": 4096,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151936,
        "max_position_embeddings": 262144,
        "rope_scaling": {"mrope_section": [24, 20, 20], "rope_type": "default"},
    },
}
"""Qwen3-VL-8B."""
DFLASH: dict[str, Any] = {"architectures": ["DFlashDraftModel"], "num_hidden_layers": 1}
"""A head of method dflash."""
MIMO_V2: dict[str, Any] = {
    "architectures": ["MiMoV2FlashForCausalLM"],
    "model_type": "mimo_v2_flash",
    "auto_map": {"AutoConfig": "configuration_mimo_v2_flash.MiMoV2FlashConfig"},
    "num_hidden_layers": 48,
    "num_attention_heads": 64,
    "num_key_value_heads": 4,
    "head_dim": 192,
    "v_head_dim": 128,
    "swa_num_attention_heads": 64,
    "swa_num_key_value_heads": 8,
    "swa_head_dim": 192,
    "swa_v_head_dim": 128,
    "sliding_window_size": 128,
    "attention_chunk_size": 128,
    "rope_scaling": None,
    "swa_rope_theta": 10000,
    "add_swa_attention_sink_bias": True,
    "hybrid_layer_pattern": [0, 1, 1, 1, 1, 0, *[1, 1, 1, 1, 1, 0] * 7],
}
"""MiMo-V2-Flash: what sizes its caches."""

CHANGED: dict[str, tuple[str, dict[str, Any]]] = {
    "granite4": (
        "Llama-3.1-8B",
        {
            "architectures": ["GraniteMoeHybridForCausalLM"],
            "model_type": "granitemoehybrid",
            "num_hidden_layers": 4,
            "layer_types": ["mamba", "mamba", "attention", "mamba"],
            "mamba_n_heads": 128,
            "mamba_d_head": 64,
            "mamba_d_state": 128,
            "mamba_n_groups": 1,
            "mamba_d_conv": 4,
            "mamba_expand": 2,
            "mamba_chunk_size": 256,
        },
    ),
    "llama-draft": ("Llama-3.1-8B", {"num_hidden_layers": 4}),
    "gemma2": (
        "Llama-3.1-8B",
        {
            "architectures": ["Gemma2ForCausalLM"],
            "model_type": "gemma2",
            "attn_logit_softcapping": 50.0,
            "layer_types": ["sliding_attention", "full_attention"] * 16,
            "sliding_window": 4096,
        },
    ),
    "bloom": (
        "Llama-3.1-8B",
        {"architectures": ["BloomForCausalLM"], "model_type": "bloom", "n_layer": 4, "n_head": 32},
    ),
    "gemma-draft": ("gemma-3-1b", {"vocab_size": 262208}),
    "gptq": ("Llama-3.1-8B", {"quantization_config": {"quant_method": "gptq", "bits": 4}}),
    "awq-draft": (
        "Llama-3.1-8B",
        {"num_hidden_layers": 4, "quantization_config": {"quant_method": "awq"}},
    ),
    "c8": (
        "Qwen3-0.6B",
        {
            "quantization_config": {
                "kv_cache_type": "C8",
                "model.layers.0.self_attn.k_proj.weight": "W8A8",
                "model.layers.0.self_attn.k_proj.kv_cache_scale": "C8",
            }
        },
    ),
    "c8-mtp": (
        "Qwen3-0.6B",
        {
            "architectures": ["Glm4MoeForCausalLM"],
            "model_type": "glm4_moe",
            "num_nextn_predict_layers": 1,
            "n_routed_experts": 8,
            "quantization_config": {
                "kv_cache_type": "C8",
                "model.layers.0.self_attn.k_proj.weight": "W8A8",
                "model.layers.0.self_attn.k_proj.kv_cache_scale": "C8",
                "model.layers.28.self_attn.k_proj.kv_cache_scale": "C8",
            },
        },
    ),
    "two-modules": (
        "Qwen3-0.6B",
        {
            "architectures": ["Glm4MoeForCausalLM"],
            "model_type": "glm4_moe",
            "num_nextn_predict_layers": 2,
            "n_routed_experts": 8,
        },
    ),
    "fp8": ("Llama-3.1-8B", {"quantization_config": {"quant_method": "fp8"}}),
    "zamba2": (
        "Llama-3.1-8B",
        {
            "architectures": ["Zamba2ForCausalLM"],
            "model_type": "zamba2",
            "hidden_size": 2560,
            "attention_head_dim": 160,
        },
    ),
    "heads-72": ("Llama-3.1-8B", {"head_dim": 72}),
    "odd-vocabulary": ("Llama-3.1-8B", {"vocab_size": 32001}),
    "no-heads": ("Llama-3.1-8B", {"num_attention_heads": -4}),
    "no-layers": ("Llama-3.1-8B", {"num_hidden_layers": 0}),
    "null-text": ("gemma-3-4b", {"text_config": None}),
    "mamba1": ("Llama-3.1-8B", {"model_type": "jamba", "architectures": ["JambaForCausalLM"]}),
    "mamba-only": ("Llama-3.1-8B", {"model_type": "mamba2"}),
    "kimi-as-draft": ("Kimi-Linear-48B-A3B", {"vocab_size": 128256}),
    "lfm2-draft": ("LFM2-350M", {"vocab_size": 128256, "hidden_size": 4096}),
    "next-draft": ("Qwen3-Next-80B-A3B", {"vocab_size": 65536}),
    "moe-draft": (
        "Llama-3.1-8B",
        {"model_type": "mixtral", "num_local_experts": 8, "num_hidden_layers": 2},
    ),
    "eagle-narrow": ("Llama-3.1-8B", {"num_hidden_layers": 1, "hidden_size": 2048}),
    "eagle3-deep": (
        "eagle3-8x128",
        {"eagle_aux_hidden_state_layer_ids": [2, 16, 99]},
    ),
    "window-head": (
        "Llama-3.1-8B",
        {"num_hidden_layers": 1, "layer_types": ["sliding_attention"], "sliding_window": 512},
    ),
    "all-windows-head": (
        "Llama-3.1-8B",
        {**DFLASH, "dflash_config": {"use_swa": True, "swa_window_size": 512}},
    ),
    "endless-windows-head": (
        "Llama-3.1-8B",
        {**DFLASH, "dflash_config": {"use_swa": True}},
    ),
    "mixed-head": (
        "Llama-3.1-8B",
        {
            **DFLASH,
            "num_hidden_layers": 2,
            "layer_types": ["sliding_attention", "full_attention"],
            "sliding_window": 512,
        },
    ),
    "v4": ("DeepSeek-V3", {"model_type": "deepseek_v4", "compress_ratios": [4, 128]}),
    "v4-whole": ("DeepSeek-V3", V4),
    "mimo-v2": ("Llama-3.1-8B", MIMO_V2),
    "v4-of-8": ("DeepSeek-V3", {**V4, "compress_ratios": [0, 0, *[8] * 41]}),
    "v4-draft": ("Qwen3-0.6B", {"vocab_size": 129280}),
    "qwen3.5": ("gemma-3-27b", QWEN3_5),
    "qwen3-vl": ("Qwen3-0.6B", QWEN3_VL),
    "dflash": (
        "Qwen3-0.6B",
        {"architectures": ["DFlashDraftModel"], "num_hidden_layers": 8, "vocab_size": 201088},
    ),
    "qwen35": ("Qwen3-Next-80B-A3B", {"model_type": "qwen3_5_text"}),
    "step3.5": ("Qwen3-0.6B", {"model_type": "step3p5", "num_nextn_predict_layers": 3}),
    "chunks": ("Llama-3.1-8B", {"attention_chunk_size": 8192}),
    "minimax-m2": ("Llama-3.1-8B", {"architectures": ["MiniMaxM2ForCausalLM"]}),
    "k-exaone": ("Llama-3.1-8B", {"architectures": [hosts.OTHER_K_EXAONE]}),
    "nameless": ("Llama-3.1-8B", {"model_type": ""}),
    "image-draft": ("Llama-3.1-8B", {"rope_scaling": {"mrope_section": [16, 24, 24]}}),
    "sparse": ("DeepSeek-V3", {"model_type": "deepseek_v32", "index_topk": 2048}),
}
"""Name -> published model, and what is changed in its config.json."""
