# SPDX-License-Identifier: Apache-2.0
"""The tiny models of families that many users run and the matrix alone tests.

Their attention is nearly that of dense models. What is their own are experts, the part of a head
that is rotated, norms of queries and keys, and heads of multi-token prediction.
"""

from __future__ import annotations

from tests.support.tiny_models.recipe import DerivedRecipe, HeadRecipe, Recipe

FAMILIES = (
    Recipe(
        name="glm4_moe",
        model_type="glm4_moe",
        # As GLM-4.5 to 4.7: half of each head is rotated, queries and keys are normed.
        architecture={
            "head_dim": 64,
            "attention_bias": True,
            "use_qk_norm": True,
            "intermediate_size": 256,
            "moe_intermediate_size": 64,
            "n_routed_experts": 8,
            "n_shared_experts": 1,
            "num_experts_per_tok": 2,
            "first_k_dense_replace": 1,
            "n_group": 1,
            "topk_group": 1,
            "routed_scaling_factor": 1.0,
            "norm_topk_prob": True,
        },
        steps=250,
    ),
)

HEADS_OF_FAMILIES: tuple[DerivedRecipe, ...] = (
    HeadRecipe(
        name="glm4_moe_mtp",
        model_type="glm4_moe",
        source="glm4_moe",
        method="mtp",
        architecture={},
        steps=50,
    ),
)
