# SPDX-License-Identifier: Apache-2.0
"""Tokens of requests that have unequal numbers of them, as rows of one width."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["padded_rows"]


def padded_rows(counts: Sequence[int]) -> tuple[list[int], list[int]]:
    """Which token each place of the padded rows takes, and the place of each token.

    Args:
        counts: tokens of each request, which lie one after the other; at least one has some. Places
            behind a request's last token take that token, or one of another request where it has
            none.
    """
    widest, start = max(counts), 0
    taken: list[int] = []
    places: list[int] = []
    for request, count in enumerate(counts):
        taken += [start + max(min(place, count - 1), 0) for place in range(widest)]
        places += [request * widest + place for place in range(count)]
        start += count
    return [min(token, start - 1) for token in taken], places
