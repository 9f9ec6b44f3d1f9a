# SPDX-License-Identifier: Apache-2.0
"""Counts of a proposal, of draft tokens by step, and whether a draft is worth its passes."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mkv_ascend.drafting.counts import (
    LEAST,
    PROPOSALS,
    DraftCounts,
    DraftWorth,
    Eager,
    ProposalCounts,
    Worthless,
    requests_of_graphs,
)
from tests.unit.drafting.fake_engine import Case, Engine

TWO_GROUPS = ((4, 8), (True, True), (False, True))
"""As in test_proposal.py."""


@pytest.mark.parametrize("kind", ["attention", "head", "recurrent", "mask", "anchor"])
@pytest.mark.parametrize("graphs", [(), (4,)], ids=["eager", "graphs"])
def test_passes_are_the_drafts_forwards_and_reads_are_waits(
    kind: str, graphs: tuple[int, ...]
) -> None:
    """A graph holds the forwards of one proposal. Captures are no passes."""
    engine = Engine(Case(kind, 3, *TWO_GROUPS), graphs=graphs)
    forward, forwards = engine.draft.forward, []

    def noted(*args: Any) -> Any:
        forwards.append(args)
        return forward(*args)

    engine.draft.forward = noted  # type: ignore[method-assign]
    before = engine.proposal.counts.passes, engine.plan.host_reads, engine.copied.waited_for
    with torch.inference_mode():
        for _ in range(20):
            engine.step()
    assert before[0] == 0
    assert bool(engine.graphs.replays) == bool(graphs)
    replayed = engine.graphs.replays * (1 + engine.proposal.strategy.later_passes)
    assert engine.proposal.counts.passes == len(forwards) + replayed >= 20
    waited = engine.copied.waited_for - before[2]
    assert engine.plan.host_reads - before[1] == waited > 0


def test_proposals_are_told_apart_by_why_they_ran_eagerly() -> None:
    counts = ProposalCounts()
    counts.note(requests=2, tokens=4, eager=None)
    counts.note(requests=3, tokens=1, eager=None)
    counts.note(requests=1, tokens=4, eager=Eager.MIXED_BATCH)
    counts.note(requests=5, tokens=0, eager=Eager.MIXED_BATCH)
    assert counts.proposals == {None: 2, Eager.MIXED_BATCH: 2}
    assert counts.tokens == {4: 12, 1: 3, 0: 0}


@pytest.mark.parametrize(
    ("tokens", "each", "most", "expected"),
    [
        ((1, 2, 4, 8, 16), 4, 8, [4, 2, 1]),
        ((12,), 4, 8, [3]),
        ((16, 24), 5, 4, [4]),
        ((1,), 4, 0, []),
    ],
)
def test_graphs_have_the_sizes_of_the_targets(
    tokens: tuple[int, ...], each: int, most: int, expected: list[int]
) -> None:
    assert requests_of_graphs(tokens, each, most) == expected


def test_one_number_for_all_takes_a_graph_of_each_size() -> None:
    shapes = DraftCounts([3] * 9).shapes((4, 8, 32), max_tokens=32)
    assert [tuple(shape) for shape in shapes] == [(1, 3, 3), (2, 3, 3), (8, 3, 3)]


@given(st.lists(st.integers(0, 4), min_size=1, max_size=9))
def test_every_step_that_may_come_has_a_graph_and_no_other(by_requests: list[int]) -> None:
    """Sizes have a graph of the target for every number of requests and K: each step is one."""
    most = len(by_requests)
    counts = DraftCounts([0, *by_requests])
    sizes = sorted({number * each for number in range(1, most + 1) for each in range(1, 6)})
    steps = {
        (now, by_requests[before - 1], by_requests[now - 1])
        for before in range(1, most + 1)
        for now in range(1, before + 1)
    }
    shapes = [tuple(shape) for shape in counts.shapes(sizes, max_tokens=most * 5)]
    assert len(shapes) == len(set(shapes))
    assert set(shapes) == steps


@given(st.lists(st.integers(0, 4), min_size=1, max_size=9), st.sets(st.integers(1, 9)))
def test_padded_steps_have_a_graph_too(by_requests: list[int], padded: set[int]) -> None:
    most = len(by_requests)
    counts = DraftCounts([0, *by_requests])
    sizes = sorted({min(number, most) * each for number in padded for each in range(1, 6)})
    shapes = list(counts.shapes(sizes, max_tokens=most * 5))
    for before in range(1, most + 1):
        for now in range(1, before + 1):
            verified, drafted = by_requests[before - 1], by_requests[now - 1]
            of_target = requests_of_graphs(sizes, verified + 1, most)
            served = [number for number in of_target if number >= now]
            if served:
                assert (min(served), verified, drafted) in shapes


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
