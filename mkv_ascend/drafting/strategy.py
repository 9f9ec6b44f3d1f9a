# SPDX-License-Identifier: Apache-2.0
"""What differs between drafts of attention layers, of recurrent layers and of mask tokens."""

from __future__ import annotations

from typing import Protocol

from mkv_ascend.drafting.draft import TargetOutput
from mkv_ascend.drafting.passes import Passes
from mkv_ascend.drafting.plan import LaterPasses


class Strategy(Protocol):
    """How a draft gets from the target's step to K draft tokens for each request."""

    tokens: int
    """K."""
    later_passes: int
    """Passes of one token per request, after the first."""

    def lay_out(self, target: TargetOutput, padded_rows: int = 0) -> int:
        """Write token ids, positions and slots of the first pass; returns its rows.

        Args:
            padded_rows: of a graph that is replayed; 0: none.
        """

    def plan(self, target: TargetOutput, rows: int) -> Passes:
        """Take what else the target gives and plan all passes, once the first is laid out."""

    def plan_captured(self, target: TargetOutput, rows: int) -> Passes:
        """The same to be captured: no metadata is left to make, none is shared with eager passes.

        ``target`` is a made-up verify step.
        """

    def may_replay(self, target: TargetOutput) -> bool:
        """Whether a batch whose requests verify K tokens each may be replayed."""

    def take_for_graph(self, target: TargetOutput, rows: int) -> None:
        """Before a replay, take what ``lay_out`` does not."""

    def lengths(
        self, target: TargetOutput, padding: int, later: LaterPasses | None
    ) -> list[list[int]]:
        """Host lengths of each pass of a replay, for its requests and as many of ``padding``.

        Args:
            later: the plan of later passes, whose lengths are on the host; None: there are none.
        """
