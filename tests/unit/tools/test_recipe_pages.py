# SPDX-License-Identifier: Apache-2.0
"""docs/recipes/: each command is one that ``mkv-ascend check`` says will be served."""

from __future__ import annotations

import shlex
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


@pytest.mark.parametrize("recipe", recipe_pages.recipes(), ids=lambda recipe: recipe["slug"])
def test_its_page_has_the_command(recipe: Recipe) -> None:
    text = (recipe_pages.FOLDER / f"{recipe['slug']}.md").read_text(encoding="utf-8")
    assert text.startswith(f"# {recipe['title']}\n")
    shown = text.partition("```bash\n")[2].partition("```")[0]
    assert shlex.split(shown.replace("\\\n", " ")) == recipe_pages.command(recipe)


def test_every_page_has_a_recipe() -> None:
    pages = {path.stem for path in recipe_pages.FOLDER.glob("*.md")} - {"index"}
    assert pages == {recipe["slug"] for recipe in recipe_pages.recipes()}
    assert len(pages) >= 15


def test_what_cannot_be_served_is_noticed(folders: dict[str, str]) -> None:
    """The test above can fail: of a recipe with more tokens than attention verifies at once."""
    recipe = recipe_pages.recipes()[0]
    spec = {**recipe["speculative_config"], "num_speculative_tokens": 16}
    status, said = recipe_pages.check({**recipe, "speculative_config": spec}, folders)
    assert (status, "[tokens-per-step]" in said) == (1, True)
