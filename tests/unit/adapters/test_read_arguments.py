# SPDX-License-Identifier: Apache-2.0
"""Whether functions read an argument, over the ways in which decoder layers treat theirs."""

import functools

import pytest

from mkv_ascend.adapters.common.gathered_states import reads_argument


def adds(states, residual):
    return states + residual, residual


def adds_unless_first(states, residual):
    if residual is None:
        residual = states
    return states, residual


def replaces(states, residual):
    residual = states
    return states, residual


def replaces_by_one_of_two(states, residual, post_norm=False):
    residual = states if post_norm else -states
    for _ in range(2):
        states = residual + states
    return states, residual


def replaces_on_one_path(states, residual):
    if states > 0:
        residual = states
    return states, residual


def reads_in_a_function_within(states, residual):
    return [state + residual for state in states], (lambda: residual)


def never_mentions(states, residual):
    return states


def reads_an_attribute_of_that_name(states, residual):
    return states.residual


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (adds, True),
        (adds_unless_first, True),
        (replaces, False),
        (replaces_by_one_of_two, False),
        (replaces_on_one_path, True),
        (reads_in_a_function_within, True),
        (never_mentions, False),
        (reads_an_attribute_of_that_name, False),
    ],
)
def test_an_argument_is_read_if_some_path_reads_what_was_passed(function, expected):
    assert reads_argument(function, "residual") is expected
    wrapped = functools.wraps(function)(lambda *args, **kwargs: function(*args, **kwargs))
    assert reads_argument(wrapped, "residual") is expected
