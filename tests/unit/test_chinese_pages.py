# SPDX-License-Identifier: Apache-2.0
"""The Chinese pages have the commands, options and links of the English ones."""

import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = {
    "README.md": "README.zh.md",
    "docs/quick_start.md": "docs/zh/quick_start.md",
    "docs/install.md": "docs/zh/install.md",
}
"""English -> Chinese."""


def commands(page: str) -> list[str]:
    """The lines of its blocks of code, without comments."""
    text = (ROOT / page).read_text(encoding="utf-8")
    blocks = re.findall(r"^```\w*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [re.sub(r"\s+# .*", "", line) for block in blocks for line in block.splitlines()]


def words(page: str) -> Counter[str]:
    """Commands, options, files and names within its sentences."""
    text = (ROOT / page).read_text(encoding="utf-8")
    prose = re.sub(r"^```\w*\n.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    return Counter(" ".join(word.split()) for word in re.findall(r"`([^`]+)`", prose))


@pytest.mark.parametrize("page", PAGES)
def test_commands_are_the_same(page: str) -> None:
    found = commands(PAGES[page])
    assert found == commands(page)
    assert len(found) > 3


@pytest.mark.parametrize("page", PAGES)
def test_names_within_sentences_are_the_same(page: str) -> None:
    assert words(PAGES[page]) == words(page)


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    chinese = ROOT / PAGES[page]
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", chinese.read_text(encoding="utf-8"))
    assert links
    assert [link for link in links if not (chinese.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES)
def test_headings_are_as_many(page: str) -> None:
    levels = [
        re.findall(r"^#+(?= )", (ROOT / one).read_text(encoding="utf-8"), re.MULTILINE)
        for one in (page, PAGES[page])
    ]
    assert levels[0] == levels[1]
