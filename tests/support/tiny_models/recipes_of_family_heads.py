# SPDX-License-Identifier: Apache-2.0
"""The tiny heads of the families in ``recipes_of_families``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.support.tiny_models.recipe import AssistantRecipe, DerivedRecipe, HeadRecipe
from tests.support.tiny_models.recipes_of_families import GEMMA4_HEADS

# Heads of another size than the targets', so that pages are unequal.
_WIDE_HEAD: Mapping[str, Any] = {
    "head_dim": 128,
    "num_attention_heads": 2,
    "intermediate_size": 256,
    "num_hidden_layers": 1,
}

# On the embedding and on the output of the first layer.
_ON_TWO_LAYERS = {
    **_WIDE_HEAD,
    "eagle_aux_hidden_state_layer_ids": [0, 1],
    "num_aux_hidden_states": 2,
}

HEADS_OF_FAMILIES: tuple[DerivedRecipe, ...] = (
    HeadRecipe(
        name="glm4_moe_mtp",
        model_type="glm4_moe",
        source="glm4_moe",
        method="mtp",
        architecture={},
        steps=50,
    ),
    HeadRecipe(
        name="glm4_moe_wide_mtp",
        model_type="glm4_moe",
        source="glm4_moe_wide",
        method="mtp",
        architecture={},
        steps=50,
    ),
    HeadRecipe(
        name="glm4_moe_lite_mtp",
        model_type="glm4_moe_lite",
        source="glm4_moe_lite",
        method="mtp",
        architecture={},
        steps=50,
    ),
    HeadRecipe(
        name="exaone_moe_mtp",
        model_type="exaone_moe",
        source="exaone_moe",
        method="mtp",
        architecture={},
        steps=50,
    ),
    HeadRecipe(
        name="hy_v3_mtp",
        model_type="hy_v3",
        source="hy_v3",
        method="mtp",
        architecture={},
        steps=50,
    ),
    HeadRecipe(
        name="ernie4_5_moe_mtp",
        model_type="ernie4_5_moe",
        source="ernie4_5_moe",
        method="mtp",
        architecture={},
        steps=60,
    ),
    HeadRecipe(
        name="longcat_flash_mtp",
        model_type="longcat_flash",
        source="longcat_flash",
        method="mtp",
        architecture={},
        steps=50,
    ),
    HeadRecipe(
        name="openpangu_mtp",
        model_type="pangu_ultra_moe",
        source="openpangu",
        method="mtp",
        architecture={},
        steps=50,
    ),
    HeadRecipe(
        name="minimax_m2_eagle3",
        model_type="llama",
        source="minimax_m2",
        method="eagle3",
        architecture=_ON_TWO_LAYERS,
        steps=60,
    ),
    HeadRecipe(
        # For a target with pictures, whose language part is this model (``pictured_model``).
        name="mimo_eagle3",
        model_type="llama",
        source="mimo",
        method="eagle3",
        architecture=_ON_TWO_LAYERS,
        steps=60,
    ),
    HeadRecipe(
        name="mimo_mtp",
        model_type="qwen2",
        source="mimo",
        method="mtp",
        architecture={},
        steps=50,
    ),
    HeadRecipe(
        name="mimo_v2_eagle3",
        model_type="llama",
        source="mimo_v2",
        method="eagle3",
        architecture=_ON_TWO_LAYERS,
        steps=60,
    ),
    HeadRecipe(
        name="mimo_v2_mtp",
        model_type="mimo_v2_flash",
        source="mimo_v2",
        method="mtp",
        architecture={},
        steps=50,
    ),
    HeadRecipe(
        name="qwen3_5_moe_mtp",
        model_type="qwen3_5_moe",
        source="qwen3_5_moe",
        method="mtp",
        architecture={},
        steps=50,
    ),
    HeadRecipe(
        name="qwen3_5_mtp",
        model_type="qwen3_5",
        source="qwen3_5",
        method="mtp",
        architecture={},
        steps=50,
    ),
    HeadRecipe(
        name="nemotron_h_mtp",
        model_type="nemotron_h",
        source="nemotron_h",
        method="mtp",
        architecture={},
        steps=50,
    ),
    HeadRecipe(
        name="step3p5_mtp",
        model_type="step3p5",
        source="step3p5",
        method="mtp",
        architecture={},
        steps=50,
    ),
    HeadRecipe(
        name="gemma4_eagle3",
        model_type="llama",
        source="gemma4",
        method="eagle3",
        architecture={
            **_WIDE_HEAD,
            "eagle_aux_hidden_state_layer_ids": [1, 2, 3],
            "num_aux_hidden_states": 3,
        },
        steps=60,
    ),
    AssistantRecipe(
        name="gemma4_mtp",
        model_type="gemma4_assistant",
        source="gemma4",
        method="mtp",
        architecture={
            "hidden_size": 64,
            **GEMMA4_HEADS,
            "intermediate_size": 128,
            "layer_types": ["sliding_attention", "full_attention"],
            "vocab_size_per_layer_input": 0,
        },
        steps=80,
    ),
)
