# SPDX-License-Identifier: Apache-2.0
"""The config.json files of tiny models with a layer of multi-token prediction, without weights.

They are of families that the matrix runs: no test trains these models.
"""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.tiny_models import mimo_v2
from tests.support.tiny_models.recipes import RECIPES

CLASSES = {
    "ernie4_5_moe": "Ernie4_5_MoeForCausalLM",
    "glm4_moe": "Glm4MoeForCausalLM",
    "hy_v3": "HYV3ForCausalLM",
    "mimo_v2": "MiMoV2FlashForCausalLM",
}
"""Tiny model -> vLLM's class of it."""


def write_config(name: str, folder: Path) -> None:
    """Write the config.json of the tiny model ``name`` with one such layer."""
    recipe = RECIPES[name]
    config = {
        "architectures": [CLASSES[name]],
        "model_type": recipe.model_type,
        "dtype": "float32",
        **recipe.configuration(),
        "num_nextn_predict_layers": 1,
    }
    if recipe.model_type == mimo_v2.MODEL_TYPE:
        # Its configuration has no defaults.
        config |= {"attention_bias": False, "hidden_act": "silu", **mimo_v2.write_code(folder)}
    (folder / "config.json").write_text(json.dumps(config))
