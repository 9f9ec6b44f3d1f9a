# SPDX-License-Identifier: Apache-2.0
"""The config.json files of tiny multi-modal models, as published ones have their parts.

There are no weights: plans of KV caches need none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

TEXT: Mapping[str, Any] = {
    "vocab_size": 264,
    "hidden_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "intermediate_size": 256,
    "max_position_embeddings": 1024,
}
ROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [8, 12, 12]}
EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "norm_topk_prob": True,
}
TOWER = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
QWEN_TOWER = {
    "depth": 1,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_heads": 2,
    "out_hidden_size": 256,
}
WITH_SEVERAL_DEPTHS = {
    **QWEN_TOWER,
    "num_position_embeddings": 16,
    "deepstack_visual_indexes": [0],
}
GATED_DELTA_NET = {
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "linear_conv_kernel_dim": 4,
    "mamba_ssm_dtype": "float32",
    "rope_parameters": {
        **ROPE,
        "partial_rotary_factor": 0.25,
        "mrope_section": [4, 2, 2],
        "mrope_interleaved": True,
    },
}


def _text(model_type: str, **more: Any) -> dict[str, Any]:
    return {**TEXT, "model_type": model_type, **more}


def _llava(model_type: str) -> dict[str, Any]:
    return {
        "model_type": model_type,
        "text_config": _text("llama"),
        "vision_config": {**TOWER, "model_type": "clip_vision_model"},
    }


def _qwen_3_5(model_type: str, **more: Any) -> dict[str, Any]:
    tower = {**QWEN_TOWER, "model_type": model_type, "num_position_embeddings": 16}
    text = _text(f"{model_type}_text", **GATED_DELTA_NET, **more)
    return {"model_type": model_type, "text_config": text, "vision_config": tower}


LATENT = {
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "q_lora_rank": None,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "n_group": 1,
    "topk_group": 1,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
}
MOON_TOWER = {
    "patch_size": 14,
    "init_pos_emb_height": 4,
    "init_pos_emb_width": 4,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "hidden_size": 32,
    "intermediate_size": 32,
}
KINDS = ["sliding_attention", "full_attention"]
WITH_WINDOWS = {"layer_types": KINDS, "sliding_window": 32}
IDEFICS_TOWER = {**TOWER, "image_size": 56}


def _cohere(model_type: str) -> dict[str, Any]:
    return {
        "model_type": model_type,
        "text_config": _text("cohere2", **WITH_WINDOWS),
        "vision_config": {**TOWER, "model_type": "siglip_vision_model"},
    }


def _gemma_4() -> dict[str, Any]:
    """Heads of two sizes; the last two of six layers read the caches of the two before them."""
    numbers = {
        "num_hidden_layers": 6,
        "layer_types": 3 * KINDS,
        "sliding_window": 32,
        "num_kv_shared_layers": 2,
        "global_head_dim": 128,
        "num_global_key_value_heads": 1,
        "attention_k_eq_v": True,
        "hidden_size_per_layer_input": 32,
        "vocab_size_per_layer_input": 264,
    }
    tower = {**TOWER, "model_type": "gemma4_vision", "num_key_value_heads": 2, "head_dim": 16}
    text = _text("gemma4_text", **numbers)
    return {"model_type": "gemma4", "text_config": text, "vision_config": tower}


CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "AyaVisionForConditionalGeneration": _cohere("aya_vision"),
    "Cohere2VisionForConditionalGeneration": _cohere("cohere2_vision"),
    "Gemma3ForConditionalGeneration": {
        "model_type": "gemma3",
        "text_config": _text(
            "gemma3_text",
            layer_types=["sliding_attention", "full_attention"],
            sliding_window=32,
        ),
        "vision_config": {**TOWER, "model_type": "siglip_vision_model"},
        "mm_tokens_per_image": 4,
    },
    "Gemma4ForConditionalGeneration": _gemma_4(),
    "Idefics3ForConditionalGeneration": {
        "model_type": "idefics3",
        "text_config": _text("llama"),
        "vision_config": {**IDEFICS_TOWER, "model_type": "idefics3_vision"},
    },
    "SmolVLMForConditionalGeneration": {
        "model_type": "smolvlm",
        "text_config": _text("llama"),
        "vision_config": {**IDEFICS_TOWER, "model_type": "smolvlm_vision"},
    },
    "InternVLForConditionalGeneration": {
        "model_type": "internvl",
        "text_config": _text("qwen3"),
        "vision_config": {
            **TOWER,
            "model_type": "internvl_vision",
            "image_size": [28, 28],
            "patch_size": [14, 14],
        },
    },
    "KimiVLForConditionalGeneration": {
        "model_type": "kimi_vl",
        "text_config": _text("deepseek_v3", **LATENT),
        "vision_config": {**MOON_TOWER, "model_type": "moonvit"},
    },
    "KimiK25ForConditionalGeneration": {
        "model_type": "kimi_k25",
        "text_config": _text("kimi_k2", **LATENT),
        "vision_config": {**MOON_TOWER, "mm_hidden_size": 32},
    },
    "Lfm2VlForConditionalGeneration": {
        "model_type": "lfm2_vl",
        "text_config": _text(
            "lfm2",
            layer_types=["conv", "full_attention"],
            conv_L_cache=3,
            conv_dim=256,
            block_dim=256,
        )
        | {"architectures": ["Lfm2ForCausalLM"]},
        "vision_config": {**TOWER, "model_type": "siglip2_vision_model"},
    },
    "LlavaForConditionalGeneration": _llava("llava"),
    "LlavaNextForConditionalGeneration": _llava("llava_next"),
    "LlavaOnevisionForConditionalGeneration": {
        **_llava("llava_onevision"),
        "text_config": _text("qwen2"),
        "vision_config": {**TOWER, "model_type": "siglip_vision_model"},
    },
    "Mistral3ForConditionalGeneration": {
        "model_type": "mistral3",
        "text_config": _text("mistral", sliding_window=None),
        "vision_config": {**TOWER, "model_type": "pixtral", "head_dim": 16},
    },
    # Published before language models had a part of their own in the file.
    "Qwen2VLForConditionalGeneration": {
        **TEXT,
        "model_type": "qwen2_vl",
        "rope_scaling": {"type": "mrope", "mrope_section": [8, 12, 12]},
        "vision_config": {"depth": 1, "embed_dim": 32, "hidden_size": 256, "num_heads": 2},
    },
    "Qwen2_5_VLForConditionalGeneration": {
        **TEXT,
        "model_type": "qwen2_5_vl",
        "rope_scaling": {"type": "mrope", "mrope_section": [8, 12, 12]},
        "use_sliding_window": False,
        "sliding_window": 512,
        "vision_config": QWEN_TOWER,
    },
    "Qwen3VLForConditionalGeneration": {
        "model_type": "qwen3_vl",
        "text_config": _text("qwen3_vl_text", rope_parameters=ROPE, rope_scaling=ROPE),
        "vision_config": WITH_SEVERAL_DEPTHS,
    },
    "Qwen3VLMoeForConditionalGeneration": {
        "model_type": "qwen3_vl_moe",
        "text_config": _text(
            "qwen3_vl_moe_text", rope_parameters=ROPE, rope_scaling=ROPE, **EXPERTS
        ),
        "vision_config": WITH_SEVERAL_DEPTHS,
    },
    "Qwen3_5ForConditionalGeneration": _qwen_3_5("qwen3_5"),
    "Qwen3_5MoeForConditionalGeneration": _qwen_3_5(
        "qwen3_5_moe", **EXPERTS, shared_expert_intermediate_size=64
    ),
}
"""Class of vLLM -> config.json."""


def write_config(architecture: str, folder: Path) -> Path:
    """A folder with the config.json of a model of this class."""
    config = {**CONFIGS[architecture], "architectures": [architecture], "dtype": "bfloat16"}
    (folder / "config.json").write_text(json.dumps(config))
    return folder
