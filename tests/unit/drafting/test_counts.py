# SPDX-License-Identifier: Apache-2.0
"""Counts of proposals, beside the calls that a draft and an event receive."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mkv_ascend.drafting.counts import Eager, ProposalCounts
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
