# SPDX-License-Identifier: Apache-2.0
"""Which requests a recurrent draft must read from their beginning, and in which passes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mkv_ascend.drafting.lost_states import Chunk, Lost, LostStates, rebuilding_passes


def test_requests_behind_computed_tokens_are_handed_out_once():
    lost = LostStates()
    lost.note([("a", 128), ("b", 0), ("c", 256)], ended=[])
    assert lost.take({"b": 0, "c": 1, "a": 2}) == [Lost(1, 256), Lost(2, 128)]
    assert lost.take({"b": 0, "c": 1, "a": 2}) == []


def test_only_requests_of_the_batch_are_handed_out():
    lost = LostStates()
    lost.note([("a", 128)], ended=[])
    assert lost.take({"b": 0}) == []
    assert lost.take({"a": 3}) == [Lost(3, 128)]


def test_ended_requests_are_forgotten_and_their_names_may_come_again():
    lost = LostStates()
    lost.note([("a", 128), ("b", 128)], ended=[])
    lost.note([("b", 256)], ended=["a", "b"])
    assert lost.take({"a": 0, "b": 1}) == [Lost(1, 256)]


def test_a_request_that_begins_anew_has_what_is_computed_now():
    """Preempted, and resumed with fewer tokens, or none, of its prefix in the cache."""
    lost = LostStates()
    lost.note([("a", 256), ("b", 256)], ended=[])
    lost.note([("a", 128), ("b", 0)], ended=[])
    assert lost.take({"a": 0, "b": 1}) == [Lost(0, 128)]


def test_requests_that_were_never_noted_end_too():
    lost = LostStates()
    lost.note([("a", 1)], ended=["b"])
    assert lost.take({"a": 0}) == [Lost(0, 1)], "one token is one that the draft has not seen"


def test_requests_share_passes_and_go_on_as_the_first_of_the_next():
    assert rebuilding_passes([Lost(3, 5), Lost(4, 2), Lost(7, 9)], 8) == [
        [Chunk(3, 0, 5), Chunk(4, 0, 2), Chunk(7, 0, 1)],
        [Chunk(7, 1, 9)],
    ]


def test_without_lost_requests_there_is_no_pass():
    assert rebuilding_passes([], 8) == []


def test_a_pass_without_tokens_is_an_error():
    with pytest.raises(ValueError, match="give 1 or more"):
        rebuilding_passes([Lost(0, 5)], 0)


@given(st.lists(st.integers(1, 40), max_size=6), st.integers(1, 30))
def test_every_token_is_read_once_and_in_order(lengths, most):
    lost = [Lost(2 * row + 1, tokens) for row, tokens in enumerate(lengths)]
    passes = rebuilding_passes(lost, most)
    read = [
        (chunk.row, token)
        for chunks in passes
        for chunk in chunks
        for token in range(chunk.start, chunk.end)
    ]
    assert read == [(one.row, token) for one in lost for token in range(one.tokens)]
    sizes = [sum(chunk.end - chunk.start for chunk in chunks) for chunks in passes]
    assert all(size == most for size in sizes[:-1])
    assert len(passes) == -(-sum(lengths) // most)
    # A chunk that goes on is the first of its pass.
    assert all(chunk.start == 0 for chunks in passes for chunk in chunks[1:])
