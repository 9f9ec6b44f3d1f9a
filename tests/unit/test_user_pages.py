# SPDX-License-Identifier: Apache-2.0
"""Pages are short: words of all, words of one, and words of a sentence."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import generate_docs

DOCS = Path(__file__).resolve().parents[2] / "docs"
MOST_WORDS = 1500
MOST_WORDS_OF_A_SENTENCE = 35
MOST_WORDS_OF_ALL = 31_500
"""Of all pages, Chinese ones too. It only shrinks, and no page is left out for its own sake."""
GENERATED = frozenset({"reference/operators.md"})
"""Pages without marks that a program writes as a whole."""
QUOTING = frozenset({"matrix.md"})
"""Pages whose generated part has messages of others."""


def written_pages() -> set[str]:
    """Pages of which some part is not generated."""
    return {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")} - GENERATED


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
        yield from re.split(r"(?<=[.!?])\s|(?<=。)", part)


def find_excess(name: str) -> list[str]:
    """What of a page is too long: its words, generated ones not counted, and its sentences."""
    text = without_generated_part(name)
    number = len(words(text))
    read = text if name in QUOTING else (DOCS / name).read_text(encoding="utf-8")
    long = [
        sentence for sentence in sentences(read) if len(words(sentence)) > MOST_WORDS_OF_A_SENTENCE
    ]
    return [f"{number} words", *long] if number > MOST_WORDS else long


@pytest.mark.parametrize("name", sorted(written_pages()))
def test_a_page_is_short(name: str) -> None:
    assert not find_excess(name), "split the page, or the sentence"


def test_all_pages_are_short_together() -> None:
    numbers = {name: len(words(without_generated_part(name))) for name in written_pages()}
    longest = sorted(numbers, key=numbers.__getitem__, reverse=True)[:5]
    assert sum(numbers.values()) <= MOST_WORDS_OF_ALL, f"the longest are {longest}"


def test_sentences_are_counted_where_they_stand() -> None:
    long = " ".join(["word"] * (MOST_WORDS_OF_A_SENTENCE + 1))
    code = f"```text\n{long}\n```"
    found = [
        *sentences(f"# Title\n\n- One `a.b. c`. Two.\n- {long}.\n\n| cell | {long} |\n\n{code}\n")
    ]
    assert sum(len(words(sentence)) > MOST_WORDS_OF_A_SENTENCE for sentence in found) == 2
    assert "Two." in [sentence.strip() for sentence in found]
