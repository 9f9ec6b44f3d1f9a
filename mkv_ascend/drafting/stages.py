# SPDX-License-Identifier: Apache-2.0
"""What pipeline stages before the last must find out by themselves: tokens that were accepted."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["accepted_since"]


def accepted_since(
    known: int, computed: int, drafts: Sequence[int], tokens: Sequence[int] | None
) -> list[int]:
    """The tokens of a request that a stage has computed but does not know to be accepted.

    A stage is told how many tokens are computed, and the one that was sampled behind them. The
    tokens between those that it knows and the sampled one are accepted drafts, which are the first
    ones of the drafts that it computed.

    Args:
        known: tokens of the request that the stage knows, its prompt included.
        computed: tokens whose keys are right, once rejected ones are taken off.
        drafts: draft tokens of the request's step before this one; empty without.
        tokens: all tokens of the request, where the stage is told; they are taken before drafts.

    Returns:
        The tokens at positions ``known`` to ``computed``; empty if it knows them all.

    Raises:
        ValueError: nothing says what these tokens are.
    """
    missing = computed - known
    if missing <= 0:
        return []
    found = drafts[:missing] if tokens is None else tokens[known:computed]
    if len(found) < missing:
        raise ValueError(
            f"{computed} tokens of a request are computed and {known} are known to this pipeline "
            f"stage, which was told {len(found)} of those between"
        )
    return list(found)
