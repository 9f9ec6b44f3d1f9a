# SPDX-License-Identifier: Apache-2.0
"""Numbers of drafting, all on the host: nothing is read from the device for them.

What proposals take; how many tokens are drafted for batches of each size, and which graphs that
takes; and whether a draft is worth its passes, by what the target accepts of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple


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


class GraphShape(NamedTuple):
    """The batches that one graph serves.

    ``requests``: the most requests. ``verified``, ``drafted``: draft tokens that each of them has
    just verified, and that are drafted for it.
    """

    requests: int
    verified: int
    drafted: int


def requests_of_graphs(tokens: Iterable[int], each: int, most: int) -> list[int]:
    """Numbers of requests whose verify steps the target's graphs replay, the largest first.

    As vLLM's ``CudaGraphManager`` has it, sizes are rounded up to whole requests.

    Args:
        tokens: sizes that graphs are asked for.
        each: tokens of a request, K + 1.
        most: largest number of requests.
    """
    asked = {-(-size // each) for size in tokens}
    return sorted((requests for requests in asked if requests <= most), reverse=True)


@dataclass(frozen=True)
class DraftCounts:
    """K by the number of requests of a step.

    Attributes:
        by_requests: K of each number of requests; of 0, which no step has, any.
    """

    by_requests: Sequence[int]

    def shapes(self, capture_sizes: Sequence[int], max_tokens: int) -> Iterator[GraphShape]:
        """The graphs that steps without prompts may ask for.

        Requests verify what was drafted for the batch before, which was no smaller: a request that
        joins brings a prompt. What is drafted follows the batch that is left.

        Args:
            capture_sizes: numbers of tokens that the target's graphs are asked for.
            max_tokens: largest number of tokens of a graph.
        """
        numbers = range(1, len(self.by_requests))
        for verified in sorted({self.by_requests[number] for number in numbers}):
            each = verified + 1
            widest = max(number for number in numbers if self.by_requests[number] == verified)
            most = min(numbers[-1], max_tokens // each)
            served = 0
            for requests in reversed(requests_of_graphs(capture_sizes, each, most)):
                batches = range(served + 1, min(requests, widest) + 1)
                for drafted in sorted({self.by_requests[number] for number in batches}):
                    yield GraphShape(requests, verified, drafted)
                served = requests


PROPOSALS = 1000
"""Verified proposals after which a draft is judged, and judged again after as many."""
LEAST = 0.02
"""Accepted share of draft tokens under which a draft is called worthless.

A draft that knows nothing of its target still meets it now and then: by chance one of thousands of
tokens, and more where a text repeats one.
"""


class Worthless(NamedTuple):
    """What a draft is called worthless for: of so many proposals and tokens, few were accepted."""

    proposals: int
    tokens: int
    accepted: int


class DraftWorth:
    """Counts accepted draft tokens of an engine, and finds once that its draft is worthless.

    The target's tokens are right whatever a draft proposes. So a draft with NaN in its weights, of
    another revision or for another target costs time and nothing shows it.

    Args:
        proposals: verified ones after which the draft is judged.
        least: share of accepted tokens.
    """

    def __init__(self, proposals: int = PROPOSALS, least: float = LEAST) -> None:
        self._proposals = proposals
        self._least = least
        self._verified = self._tokens = self._accepted = 0
        self._is_found = False

    def note(self, number: int, accepted: int) -> Worthless | None:
        """Count one proposal of ``number`` tokens; what is found, once if at all."""
        if self._is_found or not number:
            return None
        self._verified += 1
        self._tokens += number
        self._accepted += accepted
        if self._verified < self._proposals:
            return None
        found = Worthless(self._verified, self._tokens, self._accepted)
        self._verified = self._tokens = self._accepted = 0
        if found.accepted >= self._least * found.tokens:
            return None
        self._is_found = True
        return found
