# SPDX-License-Identifier: Apache-2.0
"""What differs between kinds of drafts, and the strategy of drafts of attention layers.

There are three kinds: attention layers, recurrent layers, and mask tokens.
"""

from __future__ import annotations

from typing import Protocol

import torch

from mkv_ascend.drafting.draft import Draft, LaterPasses, TargetOutput
from mkv_ascend.drafting.passes import Passes
from mkv_ascend.drafting.plan import DraftPlan
from mkv_ascend.drafting.planner import Planner


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
