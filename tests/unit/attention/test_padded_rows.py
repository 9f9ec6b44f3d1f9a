# SPDX-License-Identifier: Apache-2.0
"""Tokens of unequal requests as rows of one width, and back."""

from hypothesis import given
from hypothesis import strategies as st

from mkv_ascend.attention.padded_rows import padded_rows


@given(st.lists(st.integers(0, 5), min_size=1, max_size=6).filter(any))
def test_each_token_is_found_again(counts):
    tokens = [(request, number) for request, count in enumerate(counts) for number in range(count)]
    taken, places = padded_rows(counts)
    rows = [tokens[token] for token in taken]
    assert len(rows) == len(counts) * max(counts)
    assert [rows[place] for place in places] == tokens
    for request, count in enumerate(counts):
        row = rows[request * max(counts) :][: max(counts)]
        assert row[:count] == [(request, number) for number in range(count)]
        assert all(found == row[count - 1] for found in row[count:] if count)


def test_a_request_of_two_beside_one_of_three():
    assert padded_rows([2, 0, 3]) == ([0, 1, 1, 2, 2, 2, 2, 3, 4], [0, 1, 6, 7, 8])
