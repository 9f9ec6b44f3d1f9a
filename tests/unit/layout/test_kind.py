# SPDX-License-Identifier: Apache-2.0
"""Role and kind are strings that print as their value."""

from __future__ import annotations

import json

import pytest

from mkv_ascend.layout.kind import Kind, Role


@pytest.mark.parametrize("word", [*Role, *Kind])
def test_words_are_their_values(word: Role | Kind) -> None:
    # str() and format() of a plain str-mixin enum differ between Python 3.10, 3.11 and 3.12.
    assert str(word) == f"{word}" == word.value == word
    assert type(word)(word.value) is word
    assert json.loads(json.dumps({"word": word})) == {"word": word.value}


def test_the_words_of_the_architecture() -> None:
    assert [role.value for role in Role] == ["target", "draft"]
    assert {kind.value for kind in Kind} == {
        "full_attention",
        "sliding_window",
        "chunked_local",
        "mla",
        "sparse_mla",
        "compressed_mla",
        "mamba",
        "hidden_state",
        "cross_attention",
    }
