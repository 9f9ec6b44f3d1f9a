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
from tests.support.tiny_models.recipes_of_family_heads import HEADS_OF_FAMILIES
from tests.support.tiny_models.recipes_of_heads import HEADS
from tests.support.tiny_models.recipes_recurrent import RECURRENT
from tests.support.tiny_models.recipes_sparse import FITTED, SPARSE

_SLIDING_AND_FULL = ["sliding_attention", "full_attention"]

_GPT_OSS: Mapping[str, Any] = {
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
    "q_lora_rank": None,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
}

_RECIPES = (
    Recipe(
        name="deepseek_v2_target",
        model_type="deepseek_v2",
        architecture={
            "num_key_value_heads": 4,
            "intermediate_size": 256,
            "moe_intermediate_size": 64,
            "n_routed_experts": 8,
            "n_shared_experts": 1,
            "num_experts_per_tok": 2,
            "first_k_dense_replace": 1,
            "n_group": 1,
            "topk_group": 1,
            "topk_method": "greedy",
            "routed_scaling_factor": 1.0,
            "norm_topk_prob": False,
            **_MLA,
        },
        steps=180,
        learning_rate=0.025,
    ),
    Recipe(
        name="deepseek_v2_draft",
        model_type="deepseek_v2",
        # Without experts, so that it serves targets without; another rope base than the target's.
        architecture={
            "hidden_size": 64,
            "num_attention_heads": 2,
            "intermediate_size": 128,
            "n_routed_experts": 0,
            "n_shared_experts": 1,
            "num_experts_per_tok": 1,
            "moe_intermediate_size": 64,
            "first_k_dense_replace": 2,
            "n_group": 1,
            "topk_group": 1,
            "topk_method": "greedy",
            "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
            **_MLA,
        },
        steps=240,
        text_tokens=768,
        learning_rate=0.02,
    ),
    Recipe(
        name="llama_target",
        model_type="llama",
        architecture={"head_dim": 64, "intermediate_size": 256},
        steps=300,
    ),
    Recipe(
        name="llama_draft",
        model_type="llama",
        architecture={
            "hidden_size": 64,
            "head_dim": 64,
            "num_attention_heads": 2,
            "intermediate_size": 128,
        },
        steps=400,
    ),
    Recipe(
        name="llama_one_key_head",
        model_type="llama",
        # Ranks that share the keys of a sequence all have the same key heads.
        architecture={
            "hidden_size": 64,
            "head_dim": 64,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "intermediate_size": 128,
        },
        steps=400,
    ),
    Recipe(
        name="qwen3",
        model_type="qwen3",
        architecture={"head_dim": 64, "intermediate_size": 256},
        steps=300,
    ),
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
            "head_dim": 64,
            "query_pre_attn_scalar": 64,
            "intermediate_size": 256,
            "num_hidden_layers": 4,
            "layer_types": _SLIDING_AND_FULL * 2,
            "sliding_window": SLIDING_WINDOW,
        },
        steps=200,
    ),
    Recipe(
        name="gemma3_window_draft",
        model_type="gemma3_text",
        # Window layers only: vllm-ascend drafts with layers of one KV group. Key and value pages
        # unlike those of any target here.
        architecture={
            "hidden_size": 64,
            "head_dim": 64,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "query_pre_attn_scalar": 64,
            "intermediate_size": 128,
            "layer_types": ["sliding_attention"] * 2,
            # Of the length that sensitivity is measured on: keys beyond it change nothing.
            "sliding_window": 2 * SLIDING_WINDOW,
        },
        steps=400,
    ),
    Recipe(
        name="gemma3_draft",
        model_type="gemma3_text",
        # A window layer and a full one: a draft whose layers lie in two KV groups.
        architecture={
            "hidden_size": 64,
            "head_dim": 64,
            "num_attention_heads": 2,
            "query_pre_attn_scalar": 64,
            "intermediate_size": 128,
            "layer_types": _SLIDING_AND_FULL,
            "sliding_window": SLIDING_WINDOW,
        },
        steps=320,
        seed=1,
    ),
    Recipe(
        name="gemma3_one_key_draft",
        model_type="gemma3_text",
        # For ranks that share the keys of a sequence, which all have the same key heads.
        architecture={
            "hidden_size": 64,
            "head_dim": 64,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "query_pre_attn_scalar": 64,
            "intermediate_size": 128,
            "layer_types": _SLIDING_AND_FULL,
            "sliding_window": SLIDING_WINDOW,
        },
        steps=320,
        seed=1,
    ),
    Recipe(
        name="gemma3_alternating",
        model_type="gemma3_text",
        architecture={
            "hidden_size": 64,
            "head_dim": 64,
            "num_attention_heads": 2,
            "query_pre_attn_scalar": 64,
            "intermediate_size": 64,
            "num_hidden_layers": 8,
            "layer_types": _SLIDING_AND_FULL * 4,
            "sliding_window": SLIDING_WINDOW,
        },
        steps=150,
    ),
    Recipe(
        name="gpt_oss",
        model_type="gpt_oss",
        architecture={
            "head_dim": 64,
            "intermediate_size": 64,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
            "num_hidden_layers": 4,
            "layer_types": _SLIDING_AND_FULL * 2,
            **_GPT_OSS,
        },
        steps=200,
    ),
    Recipe(
        name="gpt_oss_draft",
        model_type="gpt_oss",
        architecture={
            "hidden_size": 64,
            "head_dim": 64,
            "num_attention_heads": 2,
            "intermediate_size": 64,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "layer_types": _SLIDING_AND_FULL,
            **_GPT_OSS,
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

RECIPES: dict[str, Recipe] = {
    recipe.name: recipe for recipe in (*_RECIPES, *RECURRENT, *SPARSE, *FAMILIES)
}
"""All tiny models that are trained alone, by name."""

DERIVED: dict[str, DerivedRecipe] = {recipe.name: recipe for recipe in (*HEADS, *HEADS_OF_FAMILIES)}
"""All tiny models that are made from another one, by name."""

FOR_THE_MATRIX = (
    "deepseek_v2_dflash",
    "deepseek_v2_dspark",
    "deepseek_v32_dflash",
    "deepseek_v32_dspark",
    "deepseek_v32_eagle3",
    "ernie4_5_moe",
    "ernie4_5_moe_eagle3",
    "ernie4_5_moe_mtp",
    "exaone_moe",
    "exaone_moe_mtp",
    "gemma4_eagle3",
    "glm4_moe",
    "glm4_moe_eagle3",
    "glm4_moe_lite",
    "glm4_moe_lite_mtp",
    "glm4_moe_mtp",
    "granite4_dflash",
    "granite4_dspark",
    "hy_v3",
    "hy_v3_eagle3",
    "hy_v3_mtp",
    "lfm2_dflash",
    "lfm2_eagle3",
    "llama_dflash",
    "llama_dspark",
    "longcat_flash_mtp",
    "mimo_mtp",
    "mimo_v2",
    "mimo_v2_eagle3",
    "mimo_v2_mtp",
    "minimax_m2",
    "minimax_m2_eagle3",
    "nemotron_h",
    "nemotron_h_mtp",
    "qwen3",
    "qwen3_5_dflash",
    "qwen3_5_dspark",
    "qwen3_5_eagle3",
    "qwen3_5_moe",
    "qwen3_5_moe_eagle3",
    "qwen3_5_moe_mtp",
    "qwen3_5_mtp",
    "qwen3_dflash",
    "qwen3_dspark",
    "qwen3_eagle3",
    "qwen3_moe_dflash",
    "qwen3_moe_dspark",
    "qwen3_next_dflash",
    "qwen3_next_dspark",
    "qwen3_next_eagle3",
)
"""Those that no test uses; ``make matrix`` trains them."""

FITTED_MODELS: dict[str, FittedRecipe] = {recipe.name: recipe for recipe in FITTED}
"""All tiny models of which only the output is fitted, by name; transformers has none of them."""

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
