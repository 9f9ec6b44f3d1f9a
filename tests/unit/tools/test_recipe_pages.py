# SPDX-License-Identifier: Apache-2.0
"""docs/recipes/: each command is one that ``mkv-ascend check`` says will be served."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import recipe_pages
from recipe_pages import Recipe


@pytest.fixture(scope="module")
def folders() -> Iterator[dict[str, str]]:
    with recipe_pages.folders() as found:
        yield found


@pytest.mark.parametrize("recipe", recipe_pages.recipes(), ids=lambda recipe: recipe["slug"])
def test_a_recipe_is_served(recipe: Recipe, folders: dict[str, str]) -> None:
    status, said = recipe_pages.check(recipe, folders)
    assert status == 0, said
    assert said.startswith("will be served")
    if recipe["draft"]:
        assert f"  draft     {folders[recipe['draft_config']]}\n" in said
