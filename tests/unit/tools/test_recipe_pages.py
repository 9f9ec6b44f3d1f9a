# SPDX-License-Identifier: Apache-2.0
"""docs/recipes/: each command is one that ``mkv-ascend check`` says will be served."""

from __future__ import annotations

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
