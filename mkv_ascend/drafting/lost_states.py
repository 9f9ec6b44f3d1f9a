# SPDX-License-Identifier: Apache-2.0
"""Requests whose first tokens a recurrent draft has not seen, and how it gets their state.

The target takes prefix hits: a request begins, or resumes after a preemption, with tokens whose
keys are in cached blocks. The draft's recurrent state after those tokens is kept nowhere. So the
draft reads the tokens itself, in extra passes, before it sees the target's rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


class LostStates:
    """Requests whose first tokens the target has computed but the draft has not."""

    def __init__(self) -> None:
        self._computed: dict[str, int] = {}

    def note(self, begun: Iterable[tuple[str, int]], ended: Iterable[str]) -> None:
        """Note the requests of the step that is about to run.

        Args:
            begun: requests that begin in this step, or begin anew in other blocks. Each comes
                with the number of its tokens that are computed already.
            ended: requests that ended since the last step.
        """
        for request in ended:
            self._computed.pop(request, None)
        for request, tokens in begun:
            self._computed.pop(request, None)
            if tokens > 0:
                self._computed[request] = tokens

    def take(self, rows: Mapping[str, int]) -> list[Lost]:
        """Return and forget the noted requests that are in the batch, sorted by row.

        Args:
            rows: the row of each request of the batch.
        """
        found = [request for request in self._computed if request in rows]
        return sorted(Lost(rows[request], self._computed.pop(request)) for request in found)


@dataclass(frozen=True, order=True)
class Lost:
    """The request in row ``row`` of the batch: the draft must read its first ``tokens`` tokens."""

    row: int
    tokens: int


@dataclass(frozen=True)
class Chunk:
    """Tokens ``start`` to ``end`` (not included) of the request in row ``row`` of the batch."""

    row: int
    start: int
    end: int


def rebuilding_passes(lost: Sequence[Lost], most_tokens: int) -> list[list[Chunk]]:
    """The chunks of each pass in which the draft reads these requests, in the fewest passes.

    A request that does not fit continues as the first chunk of the next pass. So a continued chunk
    is always the first of its pass, where builders of recurrent layers expect rows that may be
    short.

    Args:
        most_tokens: largest number of tokens of a pass.
    """
    if most_tokens < 1:
        raise ValueError(f"a pass of {most_tokens} tokens was asked for; give 1 or more")
    passes: list[list[Chunk]] = []
    room = 0
    for request in lost:
        start = 0
        while start < request.tokens:
            if room == 0:
                passes.append([])
                room = most_tokens
            end = min(request.tokens, start + room)
            passes[-1].append(Chunk(request.row, start, end))
            room -= end - start
            start = end
    return passes
