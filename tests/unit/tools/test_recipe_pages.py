# SPDX-License-Identifier: Apache-2.0
"""docs/recipes/: each command is one that ``mkv-ascend check`` says will be served."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import recipe_pages
from recipe_pages import Recipe


@pytest.mark.parametrize("recipe", recipe_pages.recipes(), ids=lambda recipe: recipe["slug"])
def test_a_recipe_is_served(recipe: Recipe) -> None:
    """As check said; tests/emulated/platform/test_recipes.py asks again."""
    found = recipe_pages.answers()[recipe["slug"]]
    assert found["answer"] == "served"
    asked = recipe["speculative_config"]
    if asked.get("method") != "suffix":
        assert found["tokens_per_proposal"] == asked["num_speculative_tokens"]
    assert found["requests"] is None if found["unplanned"] else found["requests"] >= 1


def test_the_published_format_stays_out_of_another_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """ModelSlim writes a config.json without it, and says beside it what is quantised."""
    text = {"num_hidden_layers": 1, "num_nextn_predict_layers": 1}
    config = {"model_type": "m", "text_config": text, "quantization_config": {"quant_method": "x"}}
    rules = [
        {"kind": "W8A8", "include": ["*self_attn*"], "exclude": ["*kv_b_proj"]},
        {"kind": "W4A8_DYNAMIC", "include": ["*mlp*"], "exclude": ["model.layers.1.*", "*gate"]},
    ]
    models = {"published": {"config": config}, "ours": {"of": "published", "quantised": rules}}
    monkeypatch.setattr(recipe_pages, "read", lambda: {"models": models, "recipes": []})
    with recipe_pages.folders() as found:
        shown = json.loads(Path(found["ours"], "config.json").read_text(encoding="utf-8"))
        kinds = json.loads(Path(found["ours"], recipe_pages.DESCRIPTION).read_text("utf-8"))
        assert not Path(found["published"], recipe_pages.DESCRIPTION).exists()
        first = json.loads(Path(found["published"], "config.json").read_text(encoding="utf-8"))
    assert shown == {"model_type": "m", "text_config": text}
    assert first == config
    names = ("0.self_attn.o_proj", "0.self_attn.kv_b_proj", "0.mlp.experts.0.up_proj")
    names += ("0.mlp.gate", "1.mlp.up_proj", "1.self_attn.o_proj")
    assert [kinds[f"model.layers.{name}.weight"] for name in names] == [
        *("W8A8", "FLOAT", "W4A8_DYNAMIC"),
        *("FLOAT", "FLOAT", "W8A8"),
    ]
    assert kinds["lm_head.weight"] == "FLOAT"
    assert "model.layers.2.mlp.gate.weight" not in kinds
