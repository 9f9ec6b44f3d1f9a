# SPDX-License-Identifier: Apache-2.0
"""What differs between kinds of drafts, and the strategy of drafts of attention layers.

There are three kinds: attention layers, recurrent layers, and mask tokens. ``Planner`` plans the
passes of those that draft token by token. Lengths of later passes are position + 1. Most operators
take them as lists, and the host does not know how many tokens were rejected, so they are copied to
the host before the first pass is launched and waited for after it. Where all operators take them as
tensors, nothing is copied or waited for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch

from mkv_ascend.drafting.draft import (
    CosSinRows,
    Draft,
    LaterPasses,
    Metadata,
    PassBatch,
    TargetOutput,
)
from mkv_ascend.drafting.needs import Needs, batch_of_later_pass
from mkv_ascend.drafting.plan import DraftPlan
from mkv_ascend.drafting.proposal import Passes


class Strategy(Protocol):
    """How a draft makes K draft tokens for each request from the output of the target's step."""

    tokens: int
    """K."""
    later_passes: int
    """Number of passes after the first; each has one token per request."""

    def lay_out(self, target: TargetOutput, padded_rows: int = 0) -> int:
        """Write token ids, positions and slots of the first pass; return its number of rows.

        Args:
            padded_rows: rows of the graph that is replayed; 0 without a graph.
        """

    def plan(self, target: TargetOutput, rows: int) -> Passes:
        """Plan all passes once the first is laid out, and take the rest of the target's output."""

    def plan_captured(self, target: TargetOutput, rows: int) -> Passes:
        """Like ``plan``, for a capture: all metadata is made, and eager passes share none of it.

        ``target`` is a made-up verify step.
        """

    def may_replay(self, target: TargetOutput) -> bool:
        """Whether a graph may serve this batch, in which each request verifies K tokens."""

    def take_for_graph(self, target: TargetOutput, rows: int) -> None:
        """Before a replay, take the part of the target's output that ``lay_out`` does not."""

    def lengths(
        self, target: TargetOutput, padding: int, later: LaterPasses | None
    ) -> list[list[int]]:
        """Host lengths of each pass of a replay.

        Args:
            padding: number of padding requests behind the live ones.
            later: the plan of the later passes, with lengths on the host; None without any.
        """


@dataclass(frozen=True)
class Planner:
    """Plans the passes of one draft.

    Attributes:
        draft: the draft that runs the passes.
        plan: positions, lengths and slots.
        needs: attention metadata.
    """

    draft: Draft
    plan: DraftPlan
    needs: Needs

    def first_batch(self, target: TargetOutput, rows: int) -> PassBatch:
        """The batch of the first pass, laid out in ``rows`` rows."""
        plan, requests = self.plan, target.requests
        more = plan.sizes.first_pass_rows(0, 1)
        starts, lengths = target.query_start_loc_host, target.host_lengths
        if more:
            starts = starts + more * plan.host_counts[: requests + 1]
            lengths = lengths + more
        input_rows, rows_across_ranks = self.draft.share_rows(rows)
        return PassBatch(
            index=0,
            requests=requests,
            rows=rows,
            input_rows=input_rows,
            rows_across_ranks=rows_across_ranks,
            query_start_loc=plan.first_query_start_loc[: requests + 1],
            query_start_loc_host=starts,
            longest_row=target.longest_row + more,
            lengths=plan.first_lengths[:requests],
            host_lengths=lengths,
            length_bounds=lengths,
            positions=self.draft.buffers.positions[:rows],
            slots=plan.slots(rows),
            tables=plan.tables(requests),
            common=target.common,
        )

    def passes(self, batch: PassBatch, later_rows: int | None = None) -> Passes:
        """All passes, given the first. Metadata of later ones is made on request.

        Args:
            later_rows: rows of a later pass, if they are not what the draft says.
        """
        plan, needs, requests = self.plan, self.needs, batch.requests
        sample_rows = self.draft.buffers.sample_rows[: requests * plan.sizes.sampled_per_request]
        if not plan.sizes.later_passes:
            rows = needs.cos_sin_rows(batch.positions, None)
            first = needs.first_pass(batch, rows)
            return Passes(batch, first, sample_rows, refresh=Refresh(self, rows))
        if later_rows is None:
            later_rows = self.draft.later_rows(batch.input_rows, requests)
        later = plan.plan_later(later_rows, requests)
        if needs.read_host_lengths:
            plan.copy_lengths(later)
        rows = needs.cos_sin_rows(batch.positions, later.all_positions)
        first = needs.first_pass(batch, rows)

        def later_metadata() -> Sequence[Metadata]:
            metadata = needs.later_passes(self.later_batch(batch, later, later_rows), later, rows)
            if not needs.read_host_lengths:
                return metadata.without_lengths()
            plan.wait_for_lengths()
            return metadata.with_lengths(later.host_lengths[:, :requests])

        return Passes(
            batch,
            first,
            sample_rows,
            self.positions(later, requests),
            later_rows,
            later_metadata,
            refresh=Refresh(self, rows),
        )

    def captured(self, batch: PassBatch) -> Passes:
        """Like ``passes``, for a graph: it owns its ``query_start_loc``, and all metadata is made.

        In a graph, rows begin at the same places in every verify step, padding included. In the
        plan's buffer, padding keeps values of an earlier batch, which may be large or decrease.
        Ranks that run in step replay graphs of one size, so a later pass has no row more than it
        has requests: launches in graphs take exactly the rows of their lengths.
        """
        own = replace(batch, query_start_loc=batch.query_start_loc.clone())
        passes = self.passes(own, batch.requests)
        later = passes.later()
        return replace(passes, later=lambda: later)

    def lengths(
        self, target: TargetOutput, padding: int, later: LaterPasses | None
    ) -> list[list[int]]:
        """Lengths of the first pass, then the planned ones; see ``Strategy``."""
        more = self.plan.sizes.first_pass_rows(0, 1)
        first = [length + more for length in target.host_lengths.tolist()]
        planned: list[list[int]] = [] if later is None else later.host_lengths.tolist()
        return [first + [0] * padding, *planned]

    def later_batch(self, first: PassBatch, later: LaterPasses, rows: int) -> PassBatch:
        """The batch of a pass with one token per request; its host lengths come later."""
        requests = first.requests
        starts = self.plan.host_counts[: requests + 1]
        return PassBatch(
            index=1,
            requests=requests,
            rows=requests,
            input_rows=rows,
            rows_across_ranks=first.rows_across_ranks,
            query_start_loc=self.plan.counts[: requests + 1],
            query_start_loc_host=starts,
            longest_row=1,
            lengths=later.lengths[0],
            host_lengths=starts[1:],
            length_bounds=first.length_bounds + 1,
            positions=later.request_positions[0],
            slots=later.slots[0],
            tables=later.tables,
            common=first.common,
        )

    def positions(self, later: LaterPasses, requests: int) -> tuple[torch.Tensor, ...]:
        """Positions of the later passes; those of M-RoPE advance by one on every axis.

        A row that is padding or past the end of its sequence has planned position 0; then it has
        position 0 on every axis.
        """
        buffers, plan = self.draft.buffers, self.plan
        if buffers.rope_positions is None:
            return later.positions
        ahead = plan.row_numbers[1 : len(later.positions) + 1]
        live = later.all_positions[:, :requests] > 0
        sampled = buffers.rope_positions[:, buffers.sample_rows[:requests]]
        moved = sampled + ahead[:, None, None]
        rows = later.positions[0].shape[0]
        planned = moved.new_zeros((len(ahead), sampled.shape[0], rows))
        planned[:, :, :requests] = moved * live[:, None]
        return tuple(planned)


@dataclass(frozen=True)
class Refresh:
    """The head of a graph for attention layers: it renews what a replay needs."""

    planner: Planner
    rows: CosSinRows | None

    def __call__(self, passes: Passes) -> Passes:
        """Launch the head; positions on several axes (M-RoPE) are those that it makes."""
        planner, requests = self.planner, passes.batch.requests
        # Padding requests still hold row indices of an earlier batch: clamp them, so that the
        # gather stays in bounds.
        passes.sample_rows.clamp_(max=passes.batch.rows - 1)
        combine_joined_states(planner.draft, passes.batch.rows)
        if self.rows is not None:
            self.rows.regather()
        passes = self._with_metadata(passes)
        if planner.draft.buffers.rope_positions is None or not passes.positions:
            return passes
        later = planner.plan.later_passes(passes.later_rows, requests)
        positions = planner.positions(later, requests)
        return replace(passes, positions=positions[: len(passes.positions)])

    def _with_metadata(self, passes: Passes) -> Passes:
        """``passes`` whose metadata a graph has built, where builders must run in it."""
        needs, plan = self.planner.needs, self.planner.plan
        if not any(need.builder.builds_in_graphs for need in needs.distinct):
            return passes
        assert passes.first is not None, "attention layers have metadata"
        # Replays come with other lengths than the capture, and the graph keeps numbers of the host.
        batch, longest = passes.batch, plan.sizes.max_model_len
        batch = replace(batch, length_bounds=torch.full_like(batch.length_bounds, longest))
        first = needs.rebuilt_in_graph(passes.first, batch, self.rows)
        rebuilt: list[Metadata | None] = []
        if passes.positions:
            later = plan.later_passes(passes.later_rows, batch.requests)
            rows = self.planner.later_batch(batch, later, passes.later_rows)
            for index, metadata in enumerate(passes.later()):
                assert metadata is not None, "so have those of later passes"
                own = batch_of_later_pass(rows, later, index, None)
                rebuilt.append(needs.rebuilt_in_graph(metadata, own, self.rows))
        return replace(passes, first=first, later=lambda: rebuilt)


def combine_joined_states(draft: Draft, rows: int) -> None:
    """Combine the joined states inside a graph; captured at its head."""
    buffers = draft.buffers
    if buffers.joined_states is not None and buffers.hidden_states is not None:
        buffers.hidden_states[:rows] = draft.combine(buffers.joined_states[:rows])


class AttentionStrategy:
    """``Strategy`` of separate models and of heads on the target's hidden states.

    Rejected keys are simply overwritten. The first pass sees the target's input and the token that
    the target sampled. It drafts one token, and each later pass drafts one more. With parallel
    drafting the first pass drafts all of them.
    """

    def __init__(self, planner: Planner) -> None:
        sizes = planner.plan.sizes
        self._planner = planner
        self.later_passes = sizes.later_passes
        self.tokens = sizes.sampled_per_request + sizes.later_passes

    def lay_out(self, target: TargetOutput, padded_rows: int = 0) -> int:
        return self._planner.plan.expand(target, self._planner.draft.buffers, padded_rows)

    def plan(self, target: TargetOutput, rows: int) -> Passes:
        planner = self._planner
        if target.hidden_states is not None:
            take_hidden_states(planner.draft, planner.plan, target.hidden_states, rows)
        planner.draft.embed(rows, target.multimodal)
        return planner.passes(planner.first_batch(target, rows))

    def plan_captured(self, target: TargetOutput, rows: int) -> Passes:
        return self._planner.captured(self._planner.first_batch(target, rows))

    def may_replay(self, target: TargetOutput) -> bool:
        return True

    def take_for_graph(self, target: TargetOutput, rows: int) -> None:
        """See ``Strategy``; a last chunk of a prompt may hold images, and be as long as others."""
        draft = self._planner.draft
        if target.hidden_states is not None:
            take_hidden_states_for_graph(draft, self._planner.plan, target.hidden_states, rows)
        draft.embed(rows, target.multimodal)

    def lengths(
        self, target: TargetOutput, padding: int, later: LaterPasses | None
    ) -> list[list[int]]:
        return self._planner.lengths(target, padding, later)


def take_hidden_states(draft: Draft, plan: DraftPlan, states: torch.Tensor, rows: int) -> None:
    """Write the target's hidden states [T, width] into the first pass of ``rows`` rows."""
    buffers = draft.buffers
    if buffers.hidden_states is None:
        return
    states = draft.combine(states)
    if plan.sizes.sampled_per_request == 1:
        buffers.hidden_states[: states.shape[0]] = states
        return
    assert buffers.masked_state is not None, "rows that are drafted in parallel have a state"
    out = buffers.hidden_states[:rows]
    out[plan.hidden_rows[: states.shape[0]]] = states
    torch.where(plan.masked_mask[:rows, None], buffers.masked_state, out, out=out)


def take_hidden_states_for_graph(
    draft: Draft, plan: DraftPlan, states: torch.Tensor, rows: int
) -> None:
    """Like ``take_hidden_states``, before a replay.

    States that the graph combines go to a buffer of their own.
    """
    joined = draft.buffers.joined_states
    if joined is None:
        take_hidden_states(draft, plan, states, rows)
    else:
        joined[: states.shape[0]] = states
