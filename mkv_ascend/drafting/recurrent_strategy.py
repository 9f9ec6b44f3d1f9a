# SPDX-License-Identifier: Apache-2.0
"""Drafts that have recurrent layers, such as Qwen3-Next's.

The first pass runs over the target's own rows, without the token that the target sampled. Any of
these tokens may turn out to be the last accepted one, and the state after it must exist
(``recurrent_groups.py`` says how it is kept). Then passes of one token per request draft all K
tokens. The first of them sees the token that the target sampled. That is one pass more than other
drafts take.

A graph has block tables of its own, where padding rows name block 0. In the engine's tables, rows
past the batch name blocks of other requests. The head of the graph fills its tables from the
engine's, reads from a buffer how many tokens were rejected, and rebuilds the parts of metadata that
are copied from the tables.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from mkv_ascend.drafting.draft import LaterPasses, Metadata, TargetOutput
from mkv_ascend.drafting.proposal import Passes
from mkv_ascend.drafting.recurrent_groups import COMMITTED, SCRATCH, RecurrentGroups
from mkv_ascend.drafting.strategy import Planner


class RecurrentStrategy:
    """``Strategy`` of a draft whose recurrent states return to the last accepted token.

    Args:
        planner: plans the passes for the attention layers.
        states: the recurrent layers.
        for_graph: makes ``states`` for a graph of the given number of requests.
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
        planner = self._planner
        planner.draft.embed(rows, target.multimodal)
        batch = planner.first_batch(target, rows)
        passes = planner.passes(replace(batch, length_bounds=target.length_bounds))
        return self._with_recurrent(passes, self.states, target.num_rejected)

    def plan_captured(self, target: TargetOutput, rows: int) -> Passes:
        """See ``Strategy``; the graph gets tables and metadata of recurrent layers of its own."""
        states = self._for_graph(target.requests)
        batch = self._planner.first_batch(target, rows)
        attention = self._planner.captured(batch)
        passes = self._with_recurrent(attention, states, None)
        later = passes.later()
        refresh = Refresh(self, states, attention.refresh)
        return replace(passes, later=lambda: later, refresh=refresh)

    def may_replay(self, target: TargetOutput) -> bool:
        """See ``Strategy``; no if a row begins a request, because that is a draft prefill."""
        return bool((target.length_bounds > target.longest_row).all())

    def take_for_graph(self, target: TargetOutput, rows: int) -> None:
        """See ``Strategy``; takes how many tokens of each row were rejected."""
        if target.num_rejected is None:
            self._rejected[: target.requests].zero_()
        else:
            self._rejected[: target.requests] = target.num_rejected[: target.requests]
        self._planner.draft.embed(rows, target.multimodal)

    def lengths(
        self, target: TargetOutput, padding: int, later: LaterPasses | None
    ) -> list[list[int]]:
        return self._planner.lengths(target, padding, later)

    def refresh_tables(self, states: RecurrentGroups) -> None:
        """Copy the engine's current tables and counts into a graph's ``states``."""
        requests = states.requests
        planned = self._planner.plan.later_passes(requests, requests)
        live = planned.all_lengths[0].clamp(max=1)
        states.refresh_tables(self.states, live, self._rejected[:requests])

    def _with_recurrent(
        self, passes: Passes, states: RecurrentGroups, num_rejected: torch.Tensor | None
    ) -> Passes:
        """Add the recurrent layers' metadata and commit to ``passes`` of the attention layers."""
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
    """The head of a graph for a draft with recurrent layers: it renews what a replay needs."""

    strategy: RecurrentStrategy
    states: RecurrentGroups
    attention: Callable[[Passes], Passes]

    def __call__(self, passes: Passes) -> Passes:
        """Take tables and counts, and rebuild the recurrent layers' metadata from them."""
        passes = self.attention(passes)
        first, later = passes.first, [metadata or {} for metadata in passes.later()]
        assert first is not None
        self.strategy.refresh_tables(self.states)
        rebuilt = {**first, **self.states.rebuild_metadata(first, COMMITTED)}
        recurrent = self.states.rebuild_metadata(later[0], SCRATCH) if later else {}
        made = [{**metadata, **recurrent} for metadata in later]
        return replace(passes, first=rebuilt, later=lambda: made)
