# SPDX-License-Identifier: Apache-2.0
"""Drafts that have recurrent layers, such as Qwen3-Next's.

The first pass is over the target's own rows, without what the target sampled: any of their tokens
may turn out to be the last that is accepted, and the state after it must be there
(``recurrent_states.py`` says how that one is kept). All K tokens are then drafted by passes of one
token per request, the first of which sees what the target sampled: one pass more than other drafts
take.

A graph has block tables of its own, in which rows of padding name block 0: rows of the engine's
tables past the batch name blocks of other requests. It fills them from the engine's at its head,
takes from a buffer how many tokens were rejected, and makes what metadata copies from the tables.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from mkv_ascend.drafting.draft import Metadata, TargetOutput
from mkv_ascend.drafting.passes import Passes
from mkv_ascend.drafting.plan import LaterPasses
from mkv_ascend.drafting.planner import Planner
from mkv_ascend.drafting.recurrent_groups import RecurrentGroups
from mkv_ascend.drafting.recurrent_states import COMMITTED, SCRATCH


class RecurrentStrategy:
    """``Strategy`` of a draft whose states go back to what was accepted.

    Args:
        planner: of its attention layers.
        states: of its recurrent layers.
        for_graph: makes the same for a graph of so many requests.
    """

    def __init__(
        self,
        planner: Planner,
        states: RecurrentGroups,
        for_graph: Callable[[int], RecurrentGroups],
    ) -> None:
        sizes, counts = planner.plan.sizes, planner.plan.counts
        self.tokens = self.later_passes = sizes.later_passes
        self.states = states
        self._planner, self._for_graph = planner, for_graph
        self._sampled = torch.zeros(sizes.max_requests, dtype=torch.int64, device=counts.device)
        self._rejected = counts.new_zeros(sizes.max_requests)

    def lay_out(self, target: TargetOutput, padded_rows: int = 0) -> int:
        """See ``Strategy``; the rows are the target's own."""
        planner, buffers = self._planner, self._planner.draft.buffers
        rows = planner.plan.expand(target, buffers, padded_rows)
        buffers.token_ids[: target.token_ids.shape[0]] = target.token_ids
        self._sampled[: target.requests] = target.next_token_ids
        return rows

    def plan(self, target: TargetOutput, rows: int) -> Passes:
        """See ``Strategy``."""
        planner = self._planner
        planner.draft.embed(rows, target.multimodal)
        batch = planner.first_batch(target, rows)
        passes = planner.passes(replace(batch, length_bounds=target.length_bounds))
        return self._with_recurrent(passes, self.states, target.num_rejected)

    def plan_captured(self, target: TargetOutput, rows: int) -> Passes:
        """See ``Strategy``; with states of the graph's own."""
        states = self._for_graph(target.requests)
        batch = self._planner.first_batch(target, rows)
        attention = self._planner.captured(replace(batch, length_bounds=target.length_bounds))
        passes = self._with_recurrent(attention, states, None)
        later = passes.later()
        refresh = Refresh(self, states, attention.refresh, later)
        return replace(passes, later=lambda: later, refresh=refresh)

    def may_replay(self, target: TargetOutput) -> bool:
        """See ``Strategy``; not where a row begins a request: that is a draft prefill."""
        return bool((target.length_bounds > self.tokens + 1).all())

    def take_for_graph(self, target: TargetOutput, rows: int) -> None:
        """See ``Strategy``; how many tokens of each row were rejected."""
        if target.num_rejected is None:
            self._rejected[: target.requests].zero_()
        else:
            self._rejected[: target.requests] = target.num_rejected[: target.requests]

    def lengths(
        self, target: TargetOutput, padding: int, later: LaterPasses | None
    ) -> list[list[int]]:
        """See ``Strategy``."""
        return self._planner.lengths(target, padding, later)

    def refresh_tables(self, states: RecurrentGroups) -> None:
        """Bring a graph's ``states`` what the engine's tables and counts are now."""
        requests = states.requests
        planned = self._planner.plan.later_passes(requests, requests)
        live = planned.all_lengths[0].clamp(max=1)
        states.refresh_tables(self.states, live, self._rejected[:requests])

    def _with_recurrent(
        self, passes: Passes, states: RecurrentGroups, num_rejected: torch.Tensor | None
    ) -> Passes:
        """``passes`` of attention layers with metadata of the recurrent ones, and the commit."""
        batch, planner = passes.batch, self._planner
        if num_rejected is not None:
            num_rejected = num_rejected[: batch.requests]
        assert passes.first is not None, "attention layers have metadata"
        first = {**passes.first, **states.first_pass(batch, num_rejected)}
        planned = planner.plan.later_passes(passes.later_rows, batch.requests)
        later_batch = planner.later_batch(batch, planned, passes.later_rows)

        def later() -> Sequence[Metadata]:
            recurrent = states.later_passes(later_batch)
            return [{**(attention or {}), **recurrent} for attention in passes.later()]

        return replace(
            passes,
            first=first,
            later=later,
            sampled=self._sampled[: batch.requests],
            commit=functools.partial(states.commit, batch.requests),
        )


@dataclass(frozen=True)
class Refresh:
    """What the head of a graph brings in for a draft with recurrent layers."""

    strategy: RecurrentStrategy
    states: RecurrentGroups
    attention: Callable[[Passes], Passes]
    later: Sequence[Metadata | None]

    def __call__(self, passes: Passes) -> Passes:
        """Take tables and counts, and make metadata of recurrent layers from them."""
        passes = self.attention(passes)
        first, later = passes.first, self.later[0]
        assert first is not None
        assert later is not None
        self.strategy.refresh_tables(self.states)
        rebuilt = {**first, **self.states.rebuild_metadata(first, COMMITTED)}
        recurrent = self.states.rebuild_metadata(later, SCRATCH)
        made = [{**(metadata or {}), **recurrent} for metadata in self.later]
        return replace(passes, first=rebuilt, later=lambda: made)
