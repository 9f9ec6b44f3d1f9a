# SPDX-License-Identifier: Apache-2.0
"""How many tokens are drafted for batches of each size, and which graphs that takes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from mkv_ascend.drafting.graph_runner import GraphShape


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
