# SPDX-License-Identifier: Apache-2.0
"""What pipeline stages before the last must find out by themselves: tokens that were accepted."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["accepted_since"]


def accepted_since(known: int, computed: int, tokens: Sequence[int] | None) -> list[int]:
    """The tokens of a request that a stage has computed but does not know to be accepted.

    A stage is told how many tokens are computed, and the one that was sampled behind them. The
    tokens between those that it knows and the sampled one are accepted drafts.

    Args:
        known: tokens of the request that the stage knows, its prompt included.
        computed: tokens whose keys are right, once rejected ones are taken off.
        tokens: all tokens of the request; None where the stage is not told.

    Returns:
        The tokens at positions ``known`` to ``computed``; empty if it knows them all.

    Raises:
        ValueError: nothing says what these tokens are.
    """
    if computed <= known:
        return []
    found = [] if tokens is None else list(tokens[known:computed])
    if len(found) < computed - known:
        raise ValueError(
            f"{computed} tokens of a request are computed and {known} are known to this pipeline "
            f"stage, which was told {len(found)} of those between"
        )
    return found
