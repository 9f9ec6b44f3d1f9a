# SPDX-License-Identifier: Apache-2.0
"""Configurations of the models that vllm-ascend's unit tests name.

The tests build no model: they ask vLLM for its configuration, which it would load from a hub, and
take the sizes of its attention from there. vLLM takes a folder of the model's name in its place.
The values are those of the published models.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

QWEN3_8B = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "dtype": "bfloat16",
    "vocab_size": 151936,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40960,
}

LATENT_ATTENTION = {
    "dtype": "bfloat16",
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "max_position_embeddings": 163840,
}

DEEPSEEK_V2 = {
    **LATENT_ATTENTION,
    "architectures": ["DeepseekV2ForCausalLM"],
    "model_type": "deepseek_v2",
    "vocab_size": 102400,
    "hidden_size": 5120,
    "intermediate_size": 12288,
    "moe_intermediate_size": 1536,
    "num_hidden_layers": 60,
    "first_k_dense_replace": 1,
    "n_routed_experts": 160,
    "n_shared_experts": 2,
    "num_experts_per_tok": 6,
    "n_group": 8,
    "topk_group": 3,
}

DEEPSEEK_V3_2 = {
    **LATENT_ATTENTION,
    "architectures": ["DeepseekV32ForCausalLM"],
    "model_type": "deepseek_v32",
    "vocab_size": 129280,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "first_k_dense_replace": 3,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "n_group": 8,
    "topk_group": 4,
    "topk_method": "noaux_tc",
    "index_head_dim": 128,
    "index_n_heads": 64,
    "index_topk": 2048,
}

MODELS: dict[str, dict[str, Any]] = {
    "Qwen/Qwen3-8B": QWEN3_8B,
    "deepseek-ai/DeepSeek-V2": DEEPSEEK_V2,
    "deepseek-ai/DeepSeek-V3.2-Exp": DEEPSEEK_V3_2,
}


def write(folder: Path) -> None:
    """Write each configuration below ``folder``, in which the tests run."""
    for name, configuration in MODELS.items():
        path = folder / name / "config.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(configuration))
