# SPDX-License-Identifier: Apache-2.0
"""What each tiny model is: its architecture and how it is trained.

Sizes are the smallest that the Ascend operators document: head size 64 for dense attention; for MLA
latent 512, rope 64, nope 128, value 128. Two ranks divide all heads and all widths. Features whose
results differ between engines (rope scaling, group-limited routing, softcaps) are left out, unless
the family has no form without them: vLLM always gives GPT-OSS a yarn rope.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.support.tiny_models.recipe import (
    COMMON,
    MAX_POSITIONS,
    SLIDING_WINDOW,
    AnyRecipe,
    BlockHeadRecipe,
    DerivedRecipe,
    FittedRecipe,
    HeadRecipe,
    PerturbedRecipe,
    Recipe,
    RecurrentRecipe,
)
from tests.support.tiny_models.recipes_of_families import FAMILIES
from tests.support.tiny_models.recipes_of_heads import HEADS

SLIDING_AND_FULL = ["sliding_attention", "full_attention"]

_SMALL: Mapping[str, Any] = {
    "hidden_size": 64,
    "head_dim": 64,
    "num_attention_heads": 2,
    "intermediate_size": 128,
}

_GEMMA3: Mapping[str, Any] = {
    "head_dim": 64,
    "query_pre_attn_scalar": 64,
    "sliding_window": SLIDING_WINDOW,
}

_GPT_OSS: Mapping[str, Any] = {
    "head_dim": 64,
    "intermediate_size": 64,
    "num_experts_per_tok": 2,
    "sliding_window": SLIDING_WINDOW,
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 4.0,
        "original_max_position_embeddings": MAX_POSITIONS // 4,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": False,
    },
    # vLLM's RMSNorm of this family has this epsilon written down in its code.
    "rms_norm_eps": 1e-5,
}

_MLA: Mapping[str, Any] = {
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "moe_intermediate_size": 64,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
}

_DEEPSEEK_V2: Mapping[str, Any] = {**_MLA, "q_lora_rank": None, "topk_method": "greedy"}

_RECIPES = (
    Recipe(
        name="deepseek_v2_target",
        model_type="deepseek_v2",
        architecture={
            **_DEEPSEEK_V2,
            "num_key_value_heads": 4,
            "intermediate_size": 256,
            "n_routed_experts": 8,
            "num_experts_per_tok": 2,
            "first_k_dense_replace": 1,
            "routed_scaling_factor": 1.0,
            "norm_topk_prob": False,
        },
        steps=180,
        learning_rate=0.025,
    ),
    Recipe(
        name="deepseek_v2_draft",
        model_type="deepseek_v2",
        # Without experts, so that it serves targets without; another rope base than the target's.
        architecture={
            **_DEEPSEEK_V2,
            "hidden_size": 64,
            "num_attention_heads": 2,
            "intermediate_size": 128,
            "n_routed_experts": 0,
            "num_experts_per_tok": 1,
            "first_k_dense_replace": 2,
            "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
        },
        steps=240,
        text_tokens=768,
        learning_rate=0.02,
    ),
    Recipe("llama_target", "llama", {"head_dim": 64, "intermediate_size": 256}, steps=300),
    Recipe("llama_draft", "llama", _SMALL, steps=400),
    # Ranks that share the keys of a sequence all have the same key heads.
    Recipe("llama_one_key_head", "llama", {**_SMALL, "num_key_value_heads": 1}, steps=400),
    Recipe("qwen3", "qwen3", {"head_dim": 64, "intermediate_size": 256}, steps=300),
    Recipe(
        name="qwen3_wide",
        model_type="qwen3",
        # Of the head size that an operator takes with int8 keys and values.
        architecture={"head_dim": 128, "num_attention_heads": 4, "num_key_value_heads": 2}
        | {"intermediate_size": 256},
        steps=300,
    ),
    Recipe(
        name="gemma3",
        model_type="gemma3_text",
        architecture={
            **_GEMMA3,
            "intermediate_size": 256,
            "num_hidden_layers": 4,
            "layer_types": SLIDING_AND_FULL * 2,
        },
        steps=200,
    ),
    Recipe(
        name="gemma3_window_draft",
        model_type="gemma3_text",
        # Window layers only: vllm-ascend drafts with layers of one KV group. Key and value pages
        # unlike those of any target here.
        architecture={
            **_GEMMA3,
            **_SMALL,
            "num_key_value_heads": 2,
            "layer_types": ["sliding_attention"] * 2,
            # Of the length that sensitivity is measured on: keys beyond it change nothing.
            "sliding_window": 2 * SLIDING_WINDOW,
        },
        steps=400,
    ),
    # A window layer and a full one: a draft whose layers lie in two KV groups.
    Recipe(
        name="gemma3_draft",
        model_type="gemma3_text",
        architecture={**_GEMMA3, **_SMALL, "layer_types": SLIDING_AND_FULL},
        steps=320,
        seed=1,
    ),
    # For ranks that share the keys of a sequence, which all have the same key heads.
    Recipe(
        name="gemma3_one_key_draft",
        model_type="gemma3_text",
        architecture={
            **_GEMMA3,
            **_SMALL,
            "num_key_value_heads": 1,
            "layer_types": SLIDING_AND_FULL,
        },
        steps=320,
        seed=1,
    ),
    Recipe(
        name="gemma3_alternating",
        model_type="gemma3_text",
        architecture={
            **_GEMMA3,
            **_SMALL,
            "intermediate_size": 64,
            "num_hidden_layers": 8,
            "layer_types": SLIDING_AND_FULL * 4,
        },
        steps=150,
    ),
    Recipe(
        name="gpt_oss",
        model_type="gpt_oss",
        architecture={
            **_GPT_OSS,
            "num_local_experts": 8,
            "num_hidden_layers": 4,
            "layer_types": SLIDING_AND_FULL * 2,
        },
        steps=200,
    ),
    Recipe(
        name="gpt_oss_draft",
        model_type="gpt_oss",
        architecture={
            **_GPT_OSS,
            "hidden_size": 64,
            "num_attention_heads": 2,
            "num_local_experts": 4,
            "layer_types": SLIDING_AND_FULL,
        },
        steps=250,
    ),
    Recipe(
        name="qwen3_moe",
        model_type="qwen3_moe",
        architecture={
            "head_dim": 64,
            "intermediate_size": 256,
            "moe_intermediate_size": 64,
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "norm_topk_prob": True,
        },
        steps=250,
    ),
)

# The tiny models with recurrent states beside attention. A state of 4 heads of 64 by 64 is as many
# bytes as the keys of 128 tokens with 2 heads of 64, so vllm-ascend, which makes them equal, keeps
# blocks of 128 tokens.

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

_RECURRENT = (
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

# The indexer, which chooses keys, is not trained: transformers computes it without gradients. Its
# random choice is as hard on an engine as a learned one, for the rest of the model is trained on
# what it chooses.
_SPARSE = Recipe(
    name="deepseek_v32_target",
    model_type="deepseek_v32",
    architecture={
        **_MLA,
        "num_key_value_heads": 4,
        "q_lora_rank": 64,
        # A deck is shorter, so all of one is seen in training.
        "index_topk": 32,
        "index_n_heads": 16,
        "index_head_dim": 128,
        "intermediate_size": 256,
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        # Transformers' and vLLM's way to say which layers have experts.
        "mlp_layer_types": ["dense", "sparse"],
        "first_k_dense_replace": 1,
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
        "routed_scaling_factor": 1.0,
        "norm_topk_prob": True,
    },
    # More decks than others: with 8 no seed noticed enough single keys on some processors.
    # With less text, or fewer steps, most prompts had one and the same answer.
    steps=300,
    decks=12,
    learning_rate=0.025,
)

RECIPES: dict[str, Recipe] = {
    recipe.name: recipe for recipe in (*_RECIPES, *_RECURRENT, _SPARSE, *FAMILIES)
}
"""All tiny models that are trained alone, by name."""

DERIVED: dict[str, DerivedRecipe] = {recipe.name: recipe for recipe in HEADS}
"""All tiny models that are made from another one, by name."""

_FOR_THE_MATRIX = {
    "deepseek_v2": ("dflash", "dspark"),
    "deepseek_v32": ("dflash", "dspark", "eagle3"),
    "ernie4_5_moe": ("", "eagle3", "mtp"),
    "exaone_moe": ("", "mtp"),
    "gemma4": ("eagle3",),
    "glm4_moe": ("", "eagle3", "mtp"),
    "glm4_moe_lite": ("", "mtp"),
    "granite4": ("dflash", "dspark"),
    "hy_v3": ("", "eagle3", "mtp"),
    "lfm2": ("dflash", "eagle3"),
    "llama": ("dflash", "dspark"),
    "longcat_flash": ("mtp",),
    "mimo": ("mtp",),
    "mimo_v2": ("", "eagle3", "mtp"),
    "minimax_m2": ("", "eagle3"),
    "nemotron_h": ("", "mtp"),
    "qwen3": ("", "dflash", "dspark", "eagle3"),
    "qwen3_5": ("dflash", "dspark", "eagle3", "mtp"),
    "qwen3_5_moe": ("", "eagle3", "mtp"),
    "qwen3_moe": ("dflash", "dspark"),
    "qwen3_next": ("dflash", "dspark", "eagle3"),
}
"""Of each family its heads by method, and the target where there is an empty name."""

FOR_THE_MATRIX = tuple(
    f"{family}_{method}" if method else family
    for family, methods in _FOR_THE_MATRIX.items()
    for method in methods
)
"""Those that no test uses; ``make matrix`` trains them."""

FITTED_MODELS: dict[str, FittedRecipe] = {
    "deepseek_v4_fitted": FittedRecipe(name="deepseek_v4_fitted", model_type="deepseek_v4")
}
"""All tiny models of random layers, too large to be trained, of which only the output is fitted, by
name; transformers has none of them."""

__all__ = [
    "COMMON",
    "DERIVED",
    "FITTED_MODELS",
    "FOR_THE_MATRIX",
    "MAX_POSITIONS",
    "RECIPES",
    "SLIDING_WINDOW",
    "AnyRecipe",
    "BlockHeadRecipe",
    "DerivedRecipe",
    "FittedRecipe",
    "HeadRecipe",
    "PerturbedRecipe",
    "Recipe",
    "RecurrentRecipe",
    "find_recipe",
]


def find_recipe(name: str) -> AnyRecipe:
    """The recipe called ``name``; ValueError that lists the names otherwise."""
    recipe = RECIPES.get(name) or DERIVED.get(name) or FITTED_MODELS.get(name)
    if recipe is None:
        names = ", ".join([*RECIPES, *DERIVED, *FITTED_MODELS])
        raise ValueError(f"there is no tiny model {name!r}; choose from: {names}")
    return recipe
