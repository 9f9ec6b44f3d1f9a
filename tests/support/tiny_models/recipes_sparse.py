# SPDX-License-Identifier: Apache-2.0
"""The tiny models whose attention chooses keys.

The indexer is not trained: transformers computes it without gradients. Its random choice is as hard
on an engine as a learned one, for the rest of the model is trained on what it chooses.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.support.tiny_models.recipe import FittedRecipe, Recipe

INDEX_TOPK = 32
"""Keys that a sparse layer attends to. A deck is shorter, so all of one is seen in training."""


@dataclass(frozen=True)
class SparseRecipe(Recipe):
    """A tiny model of a family that transformers does not have; see ``deepseek_v32``."""


FITTED = (FittedRecipe(name="deepseek_v4_fitted", model_type="deepseek_v4"),)
"""Models of random layers, too large to be trained."""

SPARSE = (
    SparseRecipe(
        name="deepseek_v32_target",
        model_type="deepseek_v32",
        architecture={
            "num_key_value_heads": 4,
            "q_lora_rank": 64,
            "kv_lora_rank": 512,
            "qk_rope_head_dim": 64,
            "qk_nope_head_dim": 128,
            "v_head_dim": 128,
            "index_topk": INDEX_TOPK,
            "index_n_heads": 16,
            "index_head_dim": 128,
            "intermediate_size": 256,
            "moe_intermediate_size": 64,
            "n_routed_experts": 8,
            "n_shared_experts": 1,
            "num_experts_per_tok": 2,
            # Transformers' and vLLM's way to say which layers have experts.
            "mlp_layer_types": ["dense", "sparse"],
            "first_k_dense_replace": 1,
            "n_group": 1,
            "topk_group": 1,
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
    ),
)
