# SPDX-License-Identifier: Apache-2.0
"""The tiny models of families that many users run and the matrix alone tests.

Their attention is nearly that of dense models. What is their own are experts, the part of a head
that is rotated, norms of queries and keys, and heads of multi-token prediction.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.support.tiny_models.recipe import SLIDING_WINDOW, Recipe, SteadyRecipe
from tests.support.tiny_models.tokenizer import VOCABULARY_SIZE

# As the models of 26 and 31 billion: in full attention heads are larger, a part of them is rotated,
# and keys are values too. Smaller models add an embedding for each layer.
GEMMA4_HEADS: Mapping[str, Any] = {
    "head_dim": 64,
    "global_head_dim": 128,
    "attention_k_eq_v": True,
    "num_global_key_value_heads": 1,
    "sliding_window": SLIDING_WINDOW,
    "hidden_size_per_layer_input": 0,
}

# An MLP first, then eight experts, of which two are chosen.
_EXPERTS: Mapping[str, Any] = {
    "intermediate_size": 256,
    "moe_intermediate_size": 64,
    "num_experts_per_tok": 2,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
}
_EXPERTS_OF_ONE_GROUP = {**_EXPERTS, "n_group": 1, "topk_group": 1, "norm_topk_prob": True}

# As GLM-4.5 to 4.7: half of each head is rotated, queries and keys are normed.
_GLM4_WITH_EXPERTS: Mapping[str, Any] = {
    **_EXPERTS_OF_ONE_GROUP,
    "head_dim": 64,
    "attention_bias": True,
    "use_qk_norm": True,
    "routed_scaling_factor": 1.0,
}

_MLA: Mapping[str, Any] = {
    "num_key_value_heads": 4,
    "q_lora_rank": 128,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}


def _rotated(part: float) -> dict[str, Any]:
    """Rotation of this part of each head."""
    return {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": part}


FAMILIES = (
    Recipe("glm4_moe", "glm4_moe", _GLM4_WITH_EXPERTS, steps=250),
    Recipe(
        name="glm4_moe_wide",
        model_type="glm4_moe",
        # Heads of the size that an operator takes with int8 keys and values. Every expert is
        # chosen, so that no rounding to bfloat16 chooses others.
        architecture={
            **_GLM4_WITH_EXPERTS,
            "head_dim": 128,
            "n_routed_experts": 4,
            "num_experts_per_tok": 4,
        },
        steps=160,
    ),
    Recipe(
        name="glm4_moe_lite",
        model_type="glm4_moe_lite",
        # Heads of the sizes that GLM-4.7-Flash has. As there, their number is no power of two, and
        # vllm-ascend pads them.
        architecture={
            **_MLA,
            **_EXPERTS_OF_ONE_GROUP,
            "num_attention_heads": 6,
            "num_key_value_heads": 6,
            "qk_nope_head_dim": 192,
            "v_head_dim": 256,
            "topk_method": "noaux_tc",
            "routed_scaling_factor": 1.8,
        },
        steps=180,
        learning_rate=0.025,
    ),
    Recipe(
        name="exaone_moe",
        model_type="exaone_moe",
        # As K-EXAONE: windows are rotated, full attention is not; experts behind the first layer.
        # Windows of each layer and of the drafting layer, and the second architecture, are of
        # K-EXAONE 2.0, the only one that vLLM 0.30.0 reads.
        architecture={
            "head_dim": 64,
            "intermediate_size": 256,
            "layer_types": ["sliding_attention", "full_attention"],
            "sliding_window": SLIDING_WINDOW,
            "sliding_window_pattern": 2,
            "sliding_windows": [SLIDING_WINDOW, None],
            "mtp_layer_types": ["sliding_attention"],
            "mtp_sliding_windows": [SLIDING_WINDOW],
            "moe_intermediate_size": 64,
            "num_experts": 8,
            "num_shared_experts": 1,
            "num_experts_per_tok": 2,
            "first_k_dense_replace": 1,
            "mlp_layer_types": ["dense", "sparse"],
            "is_moe_layer": [False, True],
            "n_group": 1,
            "topk_group": 1,
            "routed_scaling_factor": 2.5,
            "norm_topk_prob": True,
            "architectures": ["ExaoneMoEForCausalLM", "ExaoneMoeForCausalLM"],
        },
        steps=250,
    ),
    Recipe(
        name="hy_v3",
        model_type="hy_v3",
        # Some sizes twice: by the names of checkpoints, and by those of transformers' class.
        architecture={
            **_EXPERTS,
            "head_dim": 64,
            "qk_norm": True,
            "use_qk_norm": True,
            "expert_hidden_dim": 64,
            "num_experts": 8,
            "num_shared_experts": 1,
            "route_norm": True,
            "router_scaling_factor": 2.5,
            "routed_scaling_factor": 2.5,
            # transformers' class of GLM rotates half of each head unless it is told.
            "partial_rotary_factor": 1.0,
            "rope_parameters": _rotated(1.0),
            "architectures": ["HYV3ForCausalLM"],
        },
        steps=250,
    ),
    Recipe(
        name="ernie4_5_moe",
        model_type="ernie4_5_moe",
        # Neighbouring elements of a head are rotated together; shares of experts are a softmax.
        architecture={
            "head_dim": 64,
            "intermediate_size": 256,
            "moe_intermediate_size": 64,
            "moe_num_experts": 8,
            "moe_num_shared_experts": 1,
            "moe_k": 2,
            "moe_layer_start_index": 1,
        },
        steps=250,
    ),
    Recipe(
        name="longcat_flash",
        model_type="longcat_flash",
        # One layer, which has two attentions. Of 12 experts four hand their input on.
        architecture={
            **_MLA,
            "num_layers": 1,
            "num_hidden_layers": 1,
            "head_dim": 64,
            "mla_scale_q_lora": True,
            "mla_scale_kv_lora": True,
            "ffn_hidden_size": 256,
            "expert_ffn_hidden_size": 64,
            "n_routed_experts": 8,
            "zero_expert_num": 4,
            "zero_expert_type": "identity",
            "moe_topk": 3,
            "routed_scaling_factor": 1.5,
        },
        steps=180,
        learning_rate=0.025,
    ),
    Recipe(
        name="openpangu",
        model_type="pangu_ultra_moe",
        # As openPangu-Ultra-MoE: attention and experts have a norm before and behind.
        architecture={
            **_MLA,
            **_EXPERTS,
            "routed_scaling_factor": 2.5,
            "norm_topk_prob": True,
            "sandwich_norm": True,
            "architectures": ["PanguUltraMoEForCausalLM"],
        },
        steps=180,
        learning_rate=0.025,
    ),
    Recipe(
        name="minimax_m2",
        model_type="minimax_m2",
        # Queries and keys are normed over all heads at once, and half of each head is rotated.
        architecture={
            "head_dim": 64,
            "intermediate_size": 64,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
            "rope_parameters": _rotated(0.5),
            # Attributes of published checkpoints that the configuration class does not know.
            "rotary_dim": 32,
            "scoring_func": "sigmoid",
            "use_routing_bias": True,
        },
        steps=250,
    ),
    Recipe(
        name="mimo",
        model_type="qwen2",
        # vLLM's class of Qwen2 takes no head size but this quotient.
        architecture={
            "num_attention_heads": 2,
            "intermediate_size": 256,
            "architectures": ["MiMoForCausalLM"],
        },
        steps=300,
    ),
    Recipe(
        name="mimo_v2",
        model_type="mimo_v2_flash",
        # As published: heads of 192 for keys and 128 for values, of which 64 elements are rotated;
        # full attention and an MLP first, then windows with twice the heads of keys, and experts.
        # No layer attends in chunks, whatever ``attention_chunk_size`` says.
        architecture={
            "head_dim": 192,
            "v_head_dim": 128,
            "swa_head_dim": 192,
            "swa_v_head_dim": 128,
            "swa_num_attention_heads": 4,
            "swa_num_key_value_heads": 4,
            "partial_rotary_factor": 0.334,
            "rope_theta": 500.0,
            "swa_rope_theta": 10000.0,
            "attention_value_scale": 0.707,
            "add_swa_attention_sink_bias": True,
            "add_full_attention_sink_bias": False,
            "attention_chunk_size": SLIDING_WINDOW,
            "sliding_window": SLIDING_WINDOW,
            "sliding_window_size": SLIDING_WINDOW,
            "hybrid_layer_pattern": [0, 1],
            "moe_layer_freq": [0, 1],
            "layernorm_epsilon": 1e-6,
            "intermediate_size": 256,
            "moe_intermediate_size": 64,
            "n_routed_experts": 8,
            "n_shared_experts": None,
            "num_experts_per_tok": 2,
            "n_group": 1,
            "topk_group": 1,
            "topk_method": "noaux_tc",
            "scoring_func": "sigmoid",
            "norm_topk_prob": True,
            "routed_scaling_factor": None,
            "architectures": ["MiMoV2FlashForCausalLM"],
        },
        steps=220,
    ),
    Recipe(
        name="step3p5",
        model_type="step3p5",
        # As published, lists go on for the drafting layer. Kinds and bases have other names there.
        architecture={
            "num_hidden_layers": 3,
            "head_dim": 64,
            "num_attention_groups": 2,
            "att_impl_type": "GQA",
            "attention_other_setting": {
                "attention_type": "sliding_attention",
                "num_attention_heads": 6,
                "num_attention_groups": 2,
                "head_dim": 64,
            },
            "kinds_of_layers": ["full_attention", "sliding_attention"] * 2,
            "bases_of_rotation": [500.0, 10000.0] * 2,
            "partial_rotary_factors": [0.5, 1.0] * 2,
            "sliding_window": SLIDING_WINDOW,
            "use_head_wise_attn_gate": True,
            "intermediate_size": 256,
            "moe_layers_enum": "1,2",
            "moe_num_experts": 8,
            "moe_top_k": 2,
            "moe_intermediate_size": 64,
            "share_expert_dim": 64,
            "moe_router_activation": "sigmoid",
            "moe_router_scaling_factor": 1.5,
            "norm_expert_weight": True,
            "use_moe_router_bias": True,
            "need_fp32_gate": True,
            "architectures": ["Step3p5ForCausalLM"],
        },
        steps=220,
    ),
    SteadyRecipe(
        name="gemma4",
        model_type="gemma4_text",
        architecture={
            **GEMMA4_HEADS,
            "intermediate_size": 256,
            "num_hidden_layers": 4,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "vocab_size_per_layer_input": VOCABULARY_SIZE,
        },
        steps=200,
    ),
)
