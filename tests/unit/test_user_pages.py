# SPDX-License-Identifier: Apache-2.0
"""Pages for users are short: words of a page, and words of a sentence."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import generate_docs
import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
MOST_WORDS = 1500
MOST_WORDS_OF_A_SENTENCE = 35
OTHERS = frozenset(
    {
        "advise.md",
        "kv_transfer.md",
        "matrix.md",
        "metrics.md",
    }
)
"""Pages that do not keep to the limits yet. The list only shrinks."""
FOR_DEVELOPERS = frozenset(
    {
        "architecture.md",
        "contributing.md",
        "life_of_a_proposal.md",
        "patches.md",
        "plugin.md",
    }
)


def user_pages() -> set[str]:
    """Pages for users, of which neither references nor recipes are counted."""
    pages = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}
    generated = {name for name in pages if re.match(r"recipes/.*-|reference/|ops/", name)}
    return pages - generated - FOR_DEVELOPERS


def without_generated_part(name: str) -> str:
    """A page without its generated part."""
    marks = re.escape(generate_docs.BEGIN), re.escape(generate_docs.END)
    text = (DOCS / name).read_text(encoding="utf-8")
    return re.sub("{}.*?{}".format(*marks), "", text, flags=re.DOTALL)


def words(text: str) -> list[str]:
    return [word for word in text.split() if re.search(r"\w", word)]


def sentences(text: str) -> Iterator[str]:
    """Of paragraphs, items of lists and cells of tables; blocks of code have none."""
    text = re.sub(r"^```.*?^```$", "\n", text, flags=re.MULTILINE | re.DOTALL)
    # A link's address is no word, and a stop within code ends nothing.
    text = re.sub(r"\]\([^)]*\)", "]", text)
    text = re.sub(r"`[^`]+`", lambda code: re.sub(r"[.!?|]", "_", code[0]), text)
    text = re.sub(r"^(?:#+ |\s*[-*] |\s*\d+\. |\|)", r"\n\n", text, flags=re.MULTILINE)
    for part in re.split(r"\n\s*\n|\|", text):
        yield from re.split(r"(?<=[.!?])\s", part)


def find_excess(name: str) -> list[str]:
    """What of a page is too long."""
    text = without_generated_part(name)
    number = len(words(text))
    long = [
        sentence for sentence in sentences(text) if len(words(sentence)) > MOST_WORDS_OF_A_SENTENCE
    ]
    return [f"{number} words", *long] if number > MOST_WORDS else long


@pytest.mark.parametrize("name", sorted(user_pages() - OTHERS))
def test_a_page_for_users_is_short(name: str) -> None:
    assert not find_excess(name), "split the page, or the sentence"


@pytest.mark.parametrize("name", sorted(OTHERS))
def test_a_page_that_is_short_by_now_leaves_the_list(name: str) -> None:
    assert name in user_pages(), "there is no such page"
    assert find_excess(name), "it keeps to the limits: take it off the list"


def test_sentences_are_counted_where_they_stand() -> None:
    long = " ".join(["word"] * (MOST_WORDS_OF_A_SENTENCE + 1))
    code = f"```text\n{long}\n```"
    found = [
        *sentences(f"# Title\n\n- One `a.b. c`. Two.\n- {long}.\n\n| cell | {long} |\n\n{code}\n")
    ]
    assert sum(len(words(sentence)) > MOST_WORDS_OF_A_SENTENCE for sentence in found) == 2
    assert "Two." in [sentence.strip() for sentence in found]
