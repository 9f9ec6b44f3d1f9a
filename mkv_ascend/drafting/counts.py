# SPDX-License-Identifier: Apache-2.0
"""What proposals take, counted on the host: nothing is read from the device for it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum


class Eager(Enum):
    """Why a proposal was not replayed from a graph."""

    NO_FULL_GRAPHS = "no_full_graphs"
    """The target has none."""
    NOT_CAPTURED = "draft_not_captured"
    """The target has graphs, the draft has none; start-up says why."""
    MIXED_BATCH = "mixed_batch"
    """A prompt is among the requests, or they verify different numbers of draft tokens."""
    TOO_MANY_REQUESTS = "too_many_requests"
    """More than any graph serves."""
    DRAFT_PREFILL = "draft_prefill"
    """A recurrent draft begins a request."""
    OTHER_RANKS = "other_ranks"
    """A rank whose passes are one with these runs its target's step without a full graph."""


@dataclass
class ProposalCounts:
    """Counts since start-up.

    Attributes:
        proposals: by why they ran eagerly; None: replayed.
        tokens: draft tokens of all requests, by the number for each.
        passes: forwards of the draft for proposals.
        prefix_hit_passes: forwards in which a recurrent draft read prefix hits.
    """

    proposals: Counter[Eager | None] = field(default_factory=Counter)
    tokens: Counter[int] = field(default_factory=Counter)
    passes: int = 0
    prefix_hit_passes: int = 0

    def note(self, requests: int, tokens: int, eager: Eager | None) -> None:
        """Count a proposal of ``tokens`` draft tokens for each of ``requests`` requests."""
        self.proposals[eager] += 1
        self.tokens[tokens] += requests * tokens
