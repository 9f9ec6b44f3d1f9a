# SPDX-License-Identifier: Apache-2.0
"""The config.json files of tiny models with a layer of multi-token prediction, without weights.

They are of families that the matrix runs: no test trains these models.
"""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.tiny_models.recipes import RECIPES

CLASSES = {
    "ernie4_5_moe": "Ernie4_5_MoeForCausalLM",
    "glm4_moe": "Glm4MoeForCausalLM",
    "hy_v3": "HYV3ForCausalLM",
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
    (folder / "config.json").write_text(json.dumps(config))
