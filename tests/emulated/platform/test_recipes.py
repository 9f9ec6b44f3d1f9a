# SPDX-License-Identifier: Apache-2.0
"""What the pages of recipes show is what ``mkv-ascend check`` says of them now."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import recipe_pages
from recipe_pages import Recipe
from tests.support.judging import forked_judges

__all__ = ["forked_judges"]

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forked_judges")]
MODELS: dict[str, Any] = recipe_pages.read()["models"]
HOST = recipe_pages.installed_host()


@pytest.fixture(scope="module")
def folders() -> Iterator[dict[str, str]]:
    with recipe_pages.folders() as found:
        yield found


@pytest.mark.parametrize(
    "recipe",
    [recipe for recipe in recipe_pages.recipes() if HOST in recipe["hosts"]],
    ids=lambda recipe: recipe["slug"],
)
def test_a_recipe_is_served_as_its_page_says(recipe: Recipe, folders: dict[str, str]) -> None:
    found, shown = recipe_pages.check(recipe, folders), recipe_pages.answers()[recipe["slug"]]
    if recipe["hosts"][0] == HOST:
        # Which devices are judged for is said by the process.
        assert {**found, "notes": []} == {**shown, "notes": []}
    assert found["answer"] == "served", found
    assert found["unplanned"] or found["requests"] >= 1


@pytest.mark.parametrize(
    "name",
    [name for name, model in MODELS.items() if "quantization_config" in model.get("config", ())],
)
def test_no_published_format_that_ascend_lacks_is_served(
    name: str, folders: dict[str, str]
) -> None:
    """So the recipes name the same models in another one."""
    recipe: Recipe = {
        "target": name,
        "target_config": name,
        "draft": None,
        "ranks": 16,
        "options": [],
        # Asked without it: the package that it needs is not here.
        "speculative_config": {"method": "suffix"},
    }
    found = recipe_pages.check(recipe, folders)
    assert [refusal["code"] for refusal in found["refusals"]] in (["weight-format"], ["host"])
    words = found["refusals"][0]["asked"]
    assert any(kind in words for kind in ("fp8", "mxfp4")), words
