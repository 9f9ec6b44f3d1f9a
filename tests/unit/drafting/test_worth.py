# SPDX-License-Identifier: Apache-2.0
"""A draft of which next to nothing is accepted is called worthless, once."""

from __future__ import annotations

from mkv_ascend.drafting.counts import LEAST, PROPOSALS, DraftWorth, Worthless


def said(worth: DraftWorth, proposals: int, accepted: int, k: int = 3) -> list[Worthless]:
    """What it finds while as many proposals are verified, of which so many tokens are accepted."""
    noted = [worth.note(k, 1 if index < accepted else 0) for index in range(proposals)]
    return [found for found in noted if found is not None]


def test_it_speaks_after_so_many_proposals_and_once() -> None:
    worth = DraftWorth()
    assert said(worth, PROPOSALS - 1, 2) == []
    assert said(worth, 1, 0) == [(PROPOSALS, 3 * PROPOSALS, 2)]
    assert said(worth, 5 * PROPOSALS, 0) == []


def test_a_draft_at_the_bound_is_worth_something() -> None:
    least = round(LEAST * 3 * PROPOSALS)
    assert said(DraftWorth(), PROPOSALS, least) == []
    assert len(said(DraftWorth(), PROPOSALS, least - 1)) == 1


def test_what_was_accepted_before_does_not_count() -> None:
    """A draft that was right for long and then is not: an adapter, a change of what is asked."""
    worth = DraftWorth()
    assert said(worth, 3 * PROPOSALS, 3 * PROPOSALS) == []
    assert len(said(worth, PROPOSALS, 0)) == 1


def test_each_judgement_is_of_as_many_proposals() -> None:
    worth = DraftWorth(proposals=2, least=0.5)
    assert [worth.note(2, accepted) for accepted in (2, 2, 0)] == [None] * 3
    assert worth.note(2, 0) == Worthless(2, 4, 0)


def test_steps_without_drafts_do_not_count() -> None:
    worth = DraftWorth(proposals=2)
    assert [worth.note(k, 0) for k in (0, 2, 0)] == [None] * 3
    assert worth.note(2, 0) == Worthless(2, 4, 0)
