# SPDX-License-Identifier: Apache-2.0
"""Matching in bounded time says what ``re`` says, and never stands still."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mkv_ascend.attention.matching import (
    PatternError,
    matches_part,
    matches_whole,
    read_pattern,
)

NAME = "model.layers.3.self_attn.attn"

single = st.sampled_from(
    ["a", "b", "B", r"\.", ".", r"\d", r"\w", r"\W", "[ab]", "[^a]", "[a-c.]", "^", "$", r"\b", ""]
)

width_of_one = st.sampled_from(["a", "B", r"\.", ".", r"\d", r"\W", "[^a]", "^a", "a$", r"\bb"])
behind = st.builds(
    lambda how, parts: how % "".join(parts),
    st.sampled_from(["(?<=%s)", "(?<!%s)"]),
    st.lists(width_of_one, max_size=2),
)
"""A look behind: ``re`` takes none of a width that varies."""


def combined(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    repeat = st.sampled_from(["*", "+", "?", "*?", "+?", "??", "{2}", "{0,2}", "{1,}", "{2,3}?"])
    around = st.sampled_from(["(?:%s)", "(%s)", "(?i:%s)", "(?s:%s)", "(?=%s)", "(?!%s)"])
    return st.one_of(
        st.builds(lambda left, right: left + right, inner, inner),
        st.builds(lambda left, right: f"(?:{left}|{right})", inner, inner),
        st.builds(lambda part, how: f"(?:{part}){how}", inner, repeat),
        st.builds(lambda part, how: how % part, inner, around),
    )


expressions = st.recursive(single | behind, combined, max_leaves=8)
texts = st.text(alphabet="abBc.1 \n", max_size=7)


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(["", "(?i)", "(?s)"]), expressions, texts)
def test_the_whole_of_a_name_is_matched_as_re_does(flags: str, pattern: str, text: str) -> None:
    assert matches_whole(flags + pattern, text) == bool(re.fullmatch(flags + pattern, text))


@settings(max_examples=200, deadline=None)
@given(expressions, texts)
def test_a_part_of_a_name_is_matched_as_re_does(pattern: str, text: str) -> None:
    assert matches_part(pattern, text) == bool(re.search(pattern, text))


@pytest.mark.parametrize(
    ("pattern", "text"),
    [("(?<=a)b|ab", "ab"), ("a(?<=a)b", "ab"), ("a(?<!a)b", "ab"), ("(?<!^)b", "b")],
)
def test_what_stands_before_is_looked_at_as_re_does(pattern: str, text: str) -> None:
    assert matches_whole(pattern, text) == bool(re.fullmatch(pattern, text))


@pytest.mark.parametrize(
    "pattern",
    [
        "(a|a)*b",
        "(a|aa)+b",
        "(.*)*x",
        "(((a*)*)*)*x",
        ".*.*.*.*.*.*.*.*.*.*x",
        "((a{0,90}){0,90}){0,90}x",
        "(?=(a|a)*b)a",
        "(?:a|b|ab){2000000000}",
    ],
)
def test_patterns_that_re_would_not_finish(pattern: str) -> None:
    begin = time.process_time()
    assert not matches_whole(pattern, "a" * 90)
    # A limit that only standing still reaches: re takes years.
    assert time.process_time() - begin < 20


def test_a_repeat_of_nothing_ends() -> None:
    assert matches_whole("(?:){4000000000}", "")
    assert matches_whole("(a?){4000000000}", NAME.replace(NAME, "aaa"))


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        ("a{99999999999999999999}", "repeats too often"),
        ("(" * 60 + "a" + ")" * 60, "nested deeper than 50"),
        ("(" * 490 + ")" * 490, "nested deeper than 50"),
        ("a" * 1001, "has 1001 characters; at most 1000"),
        (r"(a)\1", "a back reference"),
        ("(a)?b(?(1)c|d)", "a condition on a group"),
        ("[", "is not a regular expression"),
        ("(?i", "is not a regular expression"),
    ],
)
def test_patterns_that_cannot_be_served_are_refused_by_what_they_hold(
    pattern: str, problem: str
) -> None:
    with pytest.raises(PatternError, match=re.escape(problem)):
        read_pattern(pattern)


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet=r"ab(){}[]*+?|\^$.,019-=!:<>ims#P", max_size=30))
def test_any_text_is_a_pattern_or_a_problem(text: str) -> None:
    try:
        # Not compared with re, which may not finish.
        matches_whole(text, NAME)
    except PatternError:
        return
