# SPDX-License-Identifier: Apache-2.0
"""Ranks that share a sequence's keys, and stages that share a model's layers."""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mkv_ascend.drafting.context_shares import ContextShares
from mkv_ascend.drafting.stages import DepthsOfStage, StepOfRequest, accepted_since, depths_of_stage


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


def test_a_stage_knows_the_tokens_of_any_request() -> None:
    """Each step verifies drafts of which some are right; the next one says what is computed."""
    generator = random.Random(1)
    for _ in range(200):
        tokens = [generator.randrange(50) for _ in range(40)]
        known = tokens[: generator.randrange(1, 8)]
        computed = len(known) - 1
        while computed + 8 < len(tokens):
            # Of later tokens the engine has those up to the first that is not computed.
            known += accepted_since(len(known), computed, tokens[: computed + 1])
            # The stage is sent that one, too.
            known += tokens[len(known) : computed + 1]
            assert known == tokens[: computed + 1]
            computed += 1 + generator.randrange(4)


def test_chunks_of_a_prompt_are_known() -> None:
    assert accepted_since(30, 16, None) == []


@pytest.mark.parametrize(("tokens", "told"), [(None, 0), ([0] * 9, 0), ([0] * 11, 2)])
def test_a_stage_that_is_told_too_little_says_so(tokens: list[int] | None, told: int) -> None:
    words = f"12 tokens of a request are computed and 9 are known .* told {told} of those"
    with pytest.raises(ValueError, match=words):
        accepted_since(9, 12, tokens)


def test_what_a_verification_gave_is_told_by_the_next_step() -> None:
    """A plain loop over drafts that are right or wrong, in blocks of four tokens."""
    generator = random.Random(3)
    computed = 0
    for _ in range(200):
        drafts = generator.randrange(4)
        step = StepOfRequest(computed, 1 + drafts, drafts)
        right = [generator.random() < 0.6 for _ in range(drafts)]
        accepted = right.index(False) if False in right else drafts
        # The token itself, then each accepted draft.
        lengths = [computed + 1 + count for count in range(accepted + 1)]
        computed = lengths[-1]
        assert step.accepted(computed) == accepted + 1
        assert step.ends_block(accepted + 1, 4) == any(length % 4 == 0 for length in lengths)


@pytest.mark.parametrize("tokens", [1, 5, 8])
def test_a_chunk_of_a_prompt_leaves_one_state(tokens: int) -> None:
    assert StepOfRequest(7, tokens, 0).accepted(7 + tokens) == 1


@pytest.mark.parametrize(
    ("layers", "received", "own"),
    [
        (range(2), (), (0, 1, 2)),
        # At a border the earlier stage gives the state; the last layer's output is the last one's.
        (range(2, 3), (0, 1, 2), (3,)),
        (range(3, 3), (0, 1, 2, 3), ()),
        (range(3, 5), (0, 1, 2, 3), (5,)),
    ],
)
def test_which_stage_gives_which_depth(
    layers: range, received: tuple[int, ...], own: tuple[int, ...]
) -> None:
    assert depths_of_stage((5, 3, 0, 2, 1, 2), layers) == DepthsOfStage(received, own)


def test_every_depth_is_given_once() -> None:
    """Whatever the borders are, also where a stage has no layer."""
    generator = random.Random(2)
    for _ in range(200):
        count = generator.randrange(1, 9)
        borders = sorted(generator.randrange(count + 1) for _ in range(generator.randrange(3)))
        asked = generator.choices(range(count + 1), k=3)
        gathered: tuple[int, ...] = ()
        for first, end in zip([0, *borders], [*borders, count], strict=True):
            here = depths_of_stage(asked, range(first, end))
            assert here.received == gathered
            gathered += here.own
        assert gathered == tuple(sorted(set(asked)))
