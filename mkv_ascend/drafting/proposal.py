# SPDX-License-Identifier: Apache-2.0
"""A proposal: K draft tokens for each request, from a draft over any number of KV groups.

One launch writes the inputs and slots of the first pass. A second plans positions, lengths and
slots of all later passes. Metadata is built once per distinct need. Then the passes run: the draft,
sampling, and feeding the sampled tokens back.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch

from mkv_ascend.drafting.counts import ProposalCounts
from mkv_ascend.drafting.draft import Draft, Metadata, PassBatch, TargetOutput
from mkv_ascend.drafting.needs import Needs
from mkv_ascend.drafting.plan import DraftPlan

if TYPE_CHECKING:
    from mkv_ascend.drafting.strategy import Strategy


def nothing() -> None:
    """The default of hooks that a strategy does not need."""


@dataclass(frozen=True)
class Passes:
    """The planned passes of a proposal.

    Attributes:
        batch: rows of the first pass.
        first: metadata of the first pass; None if ``begin`` makes it.
        sample_rows: rows of the first pass that are sampled from; the later passes go on from
            them.
        positions: of each later pass, int32 [rows] (M-RoPE: [axes, rows]).
        later_rows: rows of a later pass.
        later: returns the metadata of each later pass; called after the first pass is launched.
        sampled: [B], first tokens of the later passes; None: the tokens that the first pass drafts.
        begin: runs before the first pass, in its forward context.
        commit: runs after the first pass.
        refresh: runs at the head of a graph and renews what each replay needs. It takes these
            passes and returns the ones to run.
    """

    batch: PassBatch
    first: Metadata | None
    sample_rows: torch.Tensor
    positions: tuple[torch.Tensor, ...] = ()
    later_rows: int = 0
    later: Callable[[], Sequence[Metadata | None]] = field(default=list)
    sampled: torch.Tensor | None = None
    begin: Callable[[], None] = nothing
    commit: Callable[[], None] = nothing
    refresh: Callable[[Passes], Passes] = lambda passes: passes


def limited(passes: Passes, tokens: int) -> Passes:
    """``passes`` that draft no more than ``tokens`` for each request.

    The first pass runs in any case: it writes the draft's keys of the target's tokens.
    """
    count = max(tokens - (passes.sampled is None), 0)
    if count >= len(passes.positions):
        return passes
    return replace(passes, positions=passes.positions[:count], later=lambda: passes.later()[:count])


def with_copied_metadata(passes: Passes) -> Passes:
    """``passes`` whose metadata is a shallow copy; layers that share metadata share the copy."""
    later = [_copied(metadata) for metadata in passes.later()]
    return replace(passes, first=_copied(passes.first), later=lambda: later)


def _copied(metadata: Metadata | None) -> Metadata | None:
    if metadata is None:
        return None
    copies = {id(built): copy.copy(built) for built in metadata.values()}
    return {layer: copies[id(built)] for layer, built in metadata.items()}


def run_passes(draft: Draft, passes: Passes) -> torch.Tensor:
    """Draft K tokens for each of B requests; int64 [B, K]. Runs in the host's forward context."""
    batch = passes.batch
    passes.begin()
    states = draft.forward(batch.input_rows)
    passes.commit()
    if not passes.positions:
        return draft.sample(states.last, passes.sample_rows).view(batch.requests, -1)
    tokens = torch.empty(
        (len(passes.positions) + 1, batch.requests), dtype=torch.int64, device=states.last.device
    )
    if passes.sampled is None:
        draft.sample(states.last, passes.sample_rows, tokens[0])
        drafted = tokens
    else:
        tokens[0] = passes.sampled
        drafted = tokens[1:]
    _run_later_passes(draft, passes, tokens, states.hidden)
    return drafted.swapaxes(0, 1)


def _run_later_passes(
    draft: Draft, passes: Passes, tokens: torch.Tensor, hidden: torch.Tensor
) -> None:
    """Run the passes of one token per request; fill ``tokens`` [passes + 1, B] from row 1 on.

    Args:
        hidden: hidden states of the first pass; the later passes go on from ``sample_rows``.
    """
    requests, rows = passes.batch.requests, passes.later_rows
    metadata = passes.later()
    draft.begin_later_passes(rows, requests)
    going_on: torch.Tensor | slice = passes.sample_rows
    for index, positions in enumerate(passes.positions):
        draft.use(metadata[index])
        draft.feed_back(tokens[index], hidden, going_on)
        states = draft.forward(rows, positions)
        going_on, hidden = slice(requests), states.hidden
        draft.sample(states.last, going_on, tokens[index + 1])


class Proposal:
    """Drafts for one batch after another.

    Args:
        draft: the draft model.
        strategy: how the draft makes draft tokens from the target's step.
        plan: positions, lengths and slots.
        needs: attention metadata.
        run: runs planned passes; hosts with their own way replace it.

    ``counts``: what proposals have taken so far.
    """

    def __init__(
        self,
        draft: Draft,
        strategy: Strategy,
        plan: DraftPlan,
        needs: Needs,
        run: Callable[[Draft, Passes], torch.Tensor] = run_passes,
    ) -> None:
        self.draft, self.strategy, self.plan, self.needs = draft, strategy, plan, needs
        self._run = run
        self.counts = ProposalCounts()

    def propose(self, target: TargetOutput, tokens: int | None = None) -> torch.Tensor:
        """Draft for the B requests of the target's step.

        Args:
            tokens: to draft for each request, at most K; None: K. A draft that drafts all of its
                tokens in one pass drafts K in any case.

        Returns:
            int64 [B, drafted], with a column at least.
        """
        rows = self.strategy.lay_out(target)
        passes = self.strategy.plan(target, rows)
        if tokens is not None:
            passes = limited(passes, tokens)
        self.counts.passes += 1 + len(passes.positions)
        with self.draft.running(passes.first, passes.batch):
            return self.run(passes)

    def run(self, passes: Passes) -> torch.Tensor:
        """Run planned passes, inside the draft's forward context; int64 [B, K]."""
        return self._run(self.draft, passes)
