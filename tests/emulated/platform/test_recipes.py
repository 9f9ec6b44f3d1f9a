# SPDX-License-Identifier: Apache-2.0
"""What the pages of recipes show is what ``mkv-ascend check`` says of them now."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import recipe_pages
from recipe_pages import Recipe

from tests.support import hosts

pytestmark = [pytest.mark.slow, pytest.mark.nightly("an answer takes 20 s for each page")]


@pytest.fixture(scope="module")
def folders() -> Iterator[dict[str, str]]:
    with recipe_pages.folders() as found:
        yield found


@hosts.only_on("vllm_ascend_0_23", "the pages show answers of the default host")
@pytest.mark.parametrize("recipe", recipe_pages.recipes(), ids=lambda recipe: recipe["slug"])
def test_a_recipe_is_served_as_its_page_says(recipe: Recipe, folders: dict[str, str]) -> None:
    found, shown = recipe_pages.check(recipe, folders), recipe_pages.answers()[recipe["slug"]]
    # Which devices are judged for is said by the process.
    assert {**found, "notes": []} == {**shown, "notes": []}
