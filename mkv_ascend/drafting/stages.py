# SPDX-License-Identifier: Apache-2.0
"""What each pipeline stage finds out by itself: accepted tokens, and hidden states to give."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

__all__ = ["DepthsOfStage", "StepOfRequest", "accepted_since", "depths_of_stage"]


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
    found = [] if tokens is None else list(tokens[known:computed])
    if len(found) < computed - known:
        raise ValueError(
            f"{computed} tokens of a request are computed and {known} are known to this pipeline "
            f"stage, which was told {len(found)} of those between"
        )
    return found


@dataclass(frozen=True)
class StepOfRequest:
    """A request's share of a step that a stage has run, with drafts that may be rejected.

    Attributes:
        computed: tokens computed before the step.
        scheduled: tokens of the step, drafts included.
        drafts: how many of them were drafts.
    """

    computed: int
    scheduled: int
    drafts: int

    @property
    def certain(self) -> int:
        """Tokens computed behind the step if no draft is accepted."""
        return self.computed + self.scheduled - self.drafts

    def accepted(self, computed: int) -> int:
        """The tokens that the step gave: accepted drafts, and the one that was sampled behind them.

        Args:
            computed: tokens computed before the request's next step, without rejected ones. After
                a chunk of a prompt they are those behind the step, as after no accepted draft.
        """
        return computed - self.certain + 1

    def ends_block(self, accepted: int, block_size: int) -> bool:
        """Whether the accepted drafts, or the token before them, reach the end of a block."""
        return (self.certain + accepted - 1) // block_size * block_size >= self.certain


@dataclass(frozen=True)
class DepthsOfStage:
    """Depths of hidden states that a head reads, as one stage has them; each in rising order.

    Attributes:
        received: those that earlier stages give, and that come with what this one is sent.
        own: those that this stage's layers give.
    """

    received: tuple[int, ...] = ()
    own: tuple[int, ...] = ()


def layer_of(depth: int) -> int:
    """The layer that gives the states at ``depth``.

    Depth ``i`` is the input of layer ``i``, and so the output of the layer before it. At the border
    of two stages the earlier one gives it: the later one is sent its parts, not yet added. Depth 0
    is the embedding, of the stage with the first layer.
    """
    return max(depth - 1, 0)


def depths_of_stage(depths: Iterable[int], layers: range) -> DepthsOfStage:
    """What of ``depths`` a stage with these layers is sent, and what it gives.

    Together they are what has been gathered behind the stage, and all of it behind the last one.
    """
    asked = sorted(set(depths))
    return DepthsOfStage(
        received=tuple(depth for depth in asked if layer_of(depth) < layers.start),
        own=tuple(depth for depth in asked if layer_of(depth) in layers),
    )
