# SPDX-License-Identifier: Apache-2.0
"""Which patterns are read, what they match, and their order."""

import re
import time

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from mkv_ascend.attention.patterns import (
    PatternError,
    literal_characters,
    matches,
    matches_part,
    most_specific,
    read_pattern,
    specificity,
)

NAME = "model.layers.3.self_attn.attn"

names = st.from_regex(r"[a-z_]{1,6}(\.[a-z_]{1,6}|\.[0-9]{1,2}){1,4}", fullmatch=True)


@pytest.mark.parametrize(
    ("pattern", "count"),
    [
        ("", 0),
        ("abc", 3),
        (r"a\.b", 3),
        ("a.b", 2),
        (".*", 0),
        ("a+b*c?", 1),
        ("a{3}", 3),
        ("(?:ab){2,5}", 4),
        ("a{2,}?", 2),
        ("abc|de", 2),
        ("x(abc|)y", 2),
        ("xab|xc", 2),  # read as x(?:ab|c)
        ("[ab]c", 1),
        (r"\d+\w", 0),
        ("(ab)(?=cd)", 2),
        (r"(a)\1", 1),
        ("(?i:ab)", 2),
    ],
)
def test_literal_characters(pattern: str, count: int) -> None:
    assert literal_characters(pattern) == count


@given(names)
def test_an_escaped_name_counts_all_of_its_characters(name: str) -> None:
    assert literal_characters(re.escape(name)) == len(name)


@given(names, st.data())
def test_no_match_is_shorter_than_the_literal_characters(name: str, data: st.DataObject) -> None:
    parts = [
        data.draw(st.sampled_from([re.escape(c), ".", r"\w|\W", f"(?:{re.escape(c)})?", f"[{c}]"]))
        for c in name
    ]
    pattern = "".join(f"(?:{part})" for part in parts)
    assume(re.fullmatch(pattern, name))
    assert literal_characters(pattern) <= len(name)


def test_a_pattern_must_match_the_whole_name() -> None:
    assert matches(r".*layers\.3\..*", NAME)
    assert not matches(r"layers\.3", NAME)
    assert not matches(r"model\.layers\.3", "model.layers.33")


@given(names, st.integers(min_value=0), st.integers(min_value=1))
def test_the_name_itself_beats_every_other_pattern(name: str, start: int, length: int) -> None:
    start %= len(name)
    end = min(len(name), start + length)
    wide = re.escape(name[:start]) + ".*" + re.escape(name[end:])
    for exact in (name, re.escape(name)):
        assert most_specific([wide, exact], name) == (exact,)
        assert most_specific([exact, wide], name) == (exact,)


@given(names, st.data())
def test_keeping_more_of_the_name_is_more_specific(name: str, data: st.DataObject) -> None:
    """Replacing a longer stretch of the name by .* can only lose against a shorter one."""
    start = data.draw(st.integers(0, len(name) - 1))
    short = data.draw(st.integers(start + 1, len(name)))
    long = data.draw(st.integers(short, len(name)))
    narrow = re.escape(name[:start]) + ".*" + re.escape(name[short:])
    wide = re.escape(name[:start]) + ".*" + re.escape(name[long:])
    best = most_specific([wide, narrow], name)
    assert best == ((narrow,) if long > short else (wide, narrow))


@given(st.permutations([".*", r"model\..*", r"model\.layers\.[0-9]+\..*", NAME]))
def test_the_order_in_which_patterns_are_given_does_not_matter(patterns: list[str]) -> None:
    assert most_specific(patterns, NAME) == (NAME,)
    assert sorted(patterns, key=lambda pattern: specificity(pattern, NAME))[0] == ".*"


def test_equally_specific_patterns_all_come_back() -> None:
    patterns = [r".*self_attn\.at.*", r".*elf_attn\.att.*", "nothing"]
    assert most_specific(patterns, NAME) == tuple(patterns[:2])
    assert most_specific(["nothing"], NAME) == ()


TOO_MANY = "too many ways"


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
        "(?:){4000000000}",
        "(a?){4000000000}",
        "(?:a|a)" * 30 + "x",
        "((((((a{1000}){1000}){1000}){1000}){1000}){1000}){1000}",
        "(?<!(?:a|a){90})x",
    ],
)
def test_patterns_that_re_would_not_finish_are_refused(pattern: str) -> None:
    with pytest.raises(PatternError, match=TOO_MANY):
        read_pattern(pattern)


@pytest.mark.parametrize(
    "pattern", [".*.*.*.*.*x", "(.*?){4}x", "(?:a|a)" * 25 + "x", "(?:a?){20}x", "(a|b|ab){13}x"]
)
def test_the_worst_patterns_that_are_read_end(pattern: str) -> None:
    begin = time.process_time()
    assert not matches(pattern, "a" * 90)
    assert not matches_part(pattern, "a" * 90)
    # A limit that only standing still reaches.
    assert time.process_time() - begin < 60


@pytest.mark.parametrize(
    "pattern",
    [
        r"model\.layers\.(0|1|2|3|4|5|6|7|8|9|10|11)\..*",
        r"(?:.*\.)?layers\.\d+\.(?:self_attn|mixer)\..*",
        r".*model.*layers.*self.*attn.*",
        r"(?i)MODEL\.LAYERS\.[0-9]{1,2}\.self_attn\.attn",
        r"model\.(l)ayers\.3\.se\1f_attn\.attn",
        r"(model)?(?(1)\.layers|x).*",
        r"(?!.*mtp)model\..*",
    ],
)
def test_patterns_of_every_day_are_read(pattern: str) -> None:
    assert matches(pattern, NAME)


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        ("a{99999999999999999999}", "repeats too often"),
        ("(" * 60 + "a" + ")" * 60, "nested deeper than 50"),
        ("(" * 490 + ")" * 490, "nested deeper than 50"),
        ("a" * 1001, "has 1001 characters; at most 1000"),
        ("[", "is not a regular expression"),
        ("(?i", "is not a regular expression"),
        ("(?<=a|bc)", "is not a regular expression"),
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
        read_pattern(text)
    except PatternError:
        return
    assert matches(text, NAME) == bool(re.fullmatch(text, NAME))
    matches_part(text, NAME)


def test_a_part_of_a_name() -> None:
    assert matches_part(r"layers\.3", NAME)
    assert not matches_part(r"layers\.4", NAME)
    # Neither is such a pattern read with more around it.
    assert not matches_part("(?i)LAYERS", NAME)
    assert not matches_part(".*.*.*.*s", NAME)
