# SPDX-License-Identifier: Apache-2.0
"""Shares of a sequence against ranks that take tokens in turn, one after the other, in loops."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mkv_ascend.drafting.context_shares import ContextShares


def dealt(ranks, interleave, tokens):
    """Positions that each rank keeps, in the order in which it keeps them."""
    hands = [[] for _ in range(ranks)]
    for position in range(tokens):
        hands[position // interleave % ranks].append(position)
    return hands


@st.composite
def cases(draw):
    interleave = draw(st.sampled_from([1, 2, 4]))
    return draw(st.integers(2, 4)), interleave, interleave * draw(st.integers(1, 3))


@settings(max_examples=60, deadline=None)
@given(cases(), st.lists(st.integers(0, 60), min_size=1, max_size=4))
def test_lengths_are_numbers_of_tokens_that_ranks_were_dealt(case, lengths):
    ranks, interleave, _ = case
    expected = [[len(hand) for hand in dealt(ranks, interleave, length)] for length in lengths]
    given_lengths = torch.tensor(lengths, dtype=torch.int32)
    for rank in range(ranks):
        shares = ContextShares(ranks, rank, interleave)
        assert shares.lengths(given_lengths).tolist() == expected
        assert shares.own_lengths(given_lengths).tolist() == [row[rank] for row in expected]
        # As operators take them.
        assert shares.lengths(given_lengths).dtype is given_lengths.dtype
        assert shares.own_lengths(given_lengths).dtype is given_lengths.dtype


def test_shares_lie_where_the_lengths_lie():
    """Whatever the default device is."""
    shares = ContextShares(2, 1, 4)
    lengths = torch.tensor([5, 13], dtype=torch.int32)
    with torch.device("meta"):
        assert shares.lengths(lengths).tolist() == [[4, 1], [8, 5]]
        hidden = shares.hidden_keys(lengths, 6)
    assert hidden.tolist() == [[False, False, True, True, True, True], [False] * 6]


@settings(max_examples=60, deadline=None)
@given(cases(), st.integers(1, 60), st.randoms(use_true_random=False))
def test_each_token_has_a_slot_on_the_rank_that_keeps_it(case, tokens, random):
    ranks, interleave, block_size = case
    columns = -(-tokens // (block_size * ranks))
    table = random.sample(range(100), columns)
    shared = block_size * ranks
    slots = torch.tensor(
        [table[p // shared] * shared + p % shared for p in range(tokens)] + [-1], dtype=torch.int32
    )
    for rank, hand in enumerate(dealt(ranks, interleave, tokens)):
        shares = ContextShares(ranks, rank, interleave)
        assert shares.shared_block_size(block_size) == shared
        expected = [-1] * (tokens + 1)
        for index, position in enumerate(hand):
            block = table[index // block_size]
            expected[position] = block * block_size + index % block_size
        own = shares.own_slots(slots, block_size)
        assert own.dtype is slots.dtype
        assert own.tolist() == expected


@settings(max_examples=60, deadline=None)
@given(cases(), st.lists(st.integers(0, 40), min_size=2, max_size=4))
def test_a_token_sees_the_keys_up_to_its_own(case, positions):
    ranks, interleave, _ = case
    rows = torch.tensor(positions, dtype=torch.int32).view(1, -1)
    for rank, hand in enumerate(dealt(ranks, interleave, 41)):
        hidden = ContextShares(ranks, rank, interleave).hidden_keys(rows, len(hand))
        assert hidden.tolist() == [[[key > row for key in hand] for row in positions]]


def test_a_stretch_that_does_not_end_with_a_block_is_refused():
    with pytest.raises(ValueError, match=r"stretches of 48 tokens .* blocks of 128 tokens; let"):
        ContextShares(2, 0, 48).shared_block_size(128)
