# SPDX-License-Identifier: Apache-2.0
"""A draft of which next to nothing is accepted is called worthless, once."""

from __future__ import annotations

from mkv_ascend.drafting.worth import LEAST, PROPOSALS, DraftWorth


def said(worth: DraftWorth, proposals: int, accepted: int, k: int = 3) -> list[str]:
    """What it says while as many proposals are verified, of which so many tokens are accepted."""
    texts = []
    for index in range(proposals):
        text = worth.note(k, 1 if index < accepted else 0)
        texts += [] if text is None else [text]
    return texts


def test_it_speaks_after_so_many_proposals_and_once() -> None:
    worth = DraftWorth()
    assert said(worth, PROPOSALS - 1, 2) == []
    (text,) = said(worth, 1, 0)
    assert f"its last {PROPOSALS} proposals ({3 * PROPOSALS} draft tokens)" in text
    assert "accepted 2 tokens" in text
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


def test_steps_without_drafts_say_nothing() -> None:
    worth = DraftWorth(proposals=2)
    assert said(worth, 10, 0, k=0) == []
