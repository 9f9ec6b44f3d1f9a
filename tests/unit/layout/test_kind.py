# SPDX-License-Identifier: Apache-2.0
"""Words of roles and kinds, and abbreviated layer names against an expansion written here."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mkv_ascend.layout.kind import Kind, Role, abbreviated_names


@pytest.mark.parametrize("word", [*Role, *Kind])
def test_words_are_their_values(word: Role | Kind) -> None:
    # str() and format() of a plain str-mixin enum differ between Python 3.10, 3.11 and 3.12.
    assert str(word) == f"{word}" == word.value == word
    assert type(word)(word.value) is word
    assert json.loads(json.dumps({"word": word})) == {"word": word.value}


words = st.from_regex(r"[a-z][a-z_]{0,5}[0-9]?", fullmatch=True)
numbers = st.integers(min_value=0, max_value=40).map(str) | st.sampled_from(["007", "00"])
layer_names = st.lists(words | numbers, min_size=1, max_size=4).map(".".join)


def expand(folded: str) -> list[str]:
    """The names that an abbreviated text stands for."""
    match = re.search(r"\[(.*?)\]|(?<![^.])(\d+-\d+)(?![^.])", folded)
    if match is None:
        return [folded]
    found = []
    for part in (match.group(1) or match.group(2)).split(", "):
        first, _, last = part.partition("-")
        found += [
            folded[: match.start()] + str(number) + folded[match.end() :]
            for number in range(int(first), int(last or first) + 1)
        ]
    return found


@given(st.lists(layer_names, unique=True, max_size=30))
def test_folding_loses_and_invents_nothing(names: list[str]) -> None:
    expanded = [name for folded in abbreviated_names(names) for name in expand(folded)]
    assert sorted(expanded) == sorted(names)


@given(st.sets(st.integers(0, 60), min_size=1))
def test_one_model_folds_into_one_text_of_fewest_ranges(layers: set[int]) -> None:
    (folded,) = abbreviated_names(f"model.layers.{layer}.attn" for layer in sorted(layers))
    runs = sum(layer - 1 not in layers for layer in layers)
    assert folded.count(",") == runs - 1
    assert folded.startswith("model.layers.")
    assert folded.endswith(".attn")


@pytest.mark.parametrize(
    ("numbers_of_layers", "text"),
    [
        (range(12), "0-11"),
        ([3], "3"),
        ([n for n in range(11) if n % 6 != 5], "[0-4, 6-10]"),
        ([5, 11, 17], "[5, 11, 17]"),
        ([10, 9, 2, 1], "[1-2, 9-10]"),
    ],
)
def test_ranges(numbers_of_layers: list[int], text: str) -> None:
    names = [f"model.layers.{number}.self_attn.attn" for number in numbers_of_layers]
    assert abbreviated_names(names) == (f"model.layers.{text}.self_attn.attn",)


def test_only_the_first_number_is_folded_and_order_is_kept() -> None:
    names = ["b.1.x.0", "b.1.x.1", "a.0", "b.2.x.0", "plain"]
    assert abbreviated_names(names) == ("b.1-2.x.0", "b.1.x.1", "a.0", "plain")
