# SPDX-License-Identifier: Apache-2.0
"""Requests that begin behind tokens of which a recurrent draft has no state, and how it gets one.

The target takes prefix hits: a request begins, or goes on after it was preempted, with tokens whose
keys are in cached blocks. Of those tokens nothing keeps the draft's recurrent state. So the draft
reads them itself, in passes of its own, before it sees the target's rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


class LostStates:
    """Requests whose first tokens the target has computed and the draft has not."""

    def __init__(self) -> None:
        self._computed: dict[str, int] = {}

    def note(self, begun: Iterable[tuple[str, int]], ended: Iterable[str]) -> None:
        """A step is about to run.

        Args:
            begun: requests that begin in this step, or begin anew in other blocks, each with the
                number of its tokens that are computed already.
            ended: requests that ended since the last step.
        """
        for request in ended:
            self._computed.pop(request, None)
        for request, tokens in begun:
            self._computed.pop(request, None)
            if tokens > 0:
                self._computed[request] = tokens

    def take(self, rows: Mapping[str, int]) -> list[Lost]:
        """Those that are in the batch, by row; they are not handed out again.

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
    """The chunks of each pass by which the draft reads these requests.

    As few passes as there can be. A request that does not fit goes on as the first of the next
    pass; so a chunk that goes on is the first of its pass, where builders of recurrent layers want
    rows that may be short.

    Args:
        most_tokens: of a pass.
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
