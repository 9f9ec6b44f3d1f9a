# SPDX-License-Identifier: Apache-2.0
"""The protocol of a strategy: what differs between kinds of drafts.

There are three: attention layers, recurrent layers, and mask tokens.
"""

from __future__ import annotations

from typing import Protocol

from mkv_ascend.drafting.draft import LaterPasses, TargetOutput
from mkv_ascend.drafting.passes import Passes


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
