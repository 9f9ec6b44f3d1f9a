# SPDX-License-Identifier: Apache-2.0
"""What ``drafting.window`` comes to for one layer of the draft.

A window of W tokens lets a token attend to itself and to the W - 1 before it. The keys before them
are never read again, so their blocks are given back: the layer is planned as any sliding window.
"""

from __future__ import annotations

from mkv_ascend.layout.kind import Kind

__all__ = ["SMALLEST_WINDOW", "WINDOWED_KINDS", "kind_of_layer", "window_of_layer"]

SMALLEST_WINDOW = 2
"""Tokens; fused_infer_attention takes W - 1, and no bound at all for 0."""

WINDOWED_KINDS = frozenset({Kind.FULL_ATTENTION, Kind.SLIDING_WINDOW})
"""Kinds of layers that can be given a window: their operator has a left bound."""


def window_of_layer(own: int | None, asked: int | None, longest: int | None) -> int | None:
    """Tokens that a layer of the draft attends to; None for all.

    Args:
        own: the window that its model gives it, None where it has none. The smaller one wins.
        asked: ``drafting.window``.
        longest: tokens of the longest request, None where they are not known. A window as long
            changes nothing, and without it the layer can share a block table of the target.
    """
    if asked is None or (longest is not None and asked >= longest):
        return own
    return asked if own is None else min(own, asked)


def kind_of_layer(kind: Kind, asked: int | None, longest: int | None) -> Kind:
    """The kind of a layer of the draft that is of ``kind`` without ``drafting.window``."""
    if kind is Kind.FULL_ATTENTION and window_of_layer(None, asked, longest) is not None:
        return Kind.SLIDING_WINDOW
    return kind
