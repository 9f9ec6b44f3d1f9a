# SPDX-License-Identifier: Apache-2.0
"""Drafts of attention layers: separate models, and heads on the target's hidden states.

The first pass sees the target's input and the token that the target sampled. It drafts one token,
and each later pass drafts one more. With parallel drafting the first pass drafts all of them.
"""

from __future__ import annotations

from mkv_ascend.drafting.draft import LaterPasses, TargetOutput
from mkv_ascend.drafting.hidden_states import take_hidden_states, take_hidden_states_for_graph
from mkv_ascend.drafting.passes import Passes
from mkv_ascend.drafting.planner import Planner


class AttentionStrategy:
    """``Strategy`` of a draft whose rejected keys are simply overwritten."""

    def __init__(self, planner: Planner) -> None:
        sizes = planner.plan.sizes
        self._planner = planner
        self.later_passes = sizes.later_passes
        self.tokens = sizes.sampled_per_request + sizes.later_passes

    def lay_out(self, target: TargetOutput, padded_rows: int = 0) -> int:
        """See ``Strategy``."""
        return self._planner.plan.expand(target, self._planner.draft.buffers, padded_rows)

    def plan(self, target: TargetOutput, rows: int) -> Passes:
        """See ``Strategy``."""
        planner = self._planner
        if target.hidden_states is not None:
            take_hidden_states(planner.draft, planner.plan, target.hidden_states, rows)
        planner.draft.embed(rows, target.multimodal)
        return planner.passes(planner.first_batch(target, rows))

    def plan_captured(self, target: TargetOutput, rows: int) -> Passes:
        """See ``Strategy``."""
        return self._planner.captured(self._planner.first_batch(target, rows))

    def may_replay(self, target: TargetOutput) -> bool:
        """See ``Strategy``."""
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
        """See ``Strategy``."""
        return self._planner.lengths(target, padding, later)
