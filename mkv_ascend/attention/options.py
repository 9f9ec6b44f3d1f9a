# SPDX-License-Identifier: Apache-2.0
"""The options under ``attention``, which ``mkv_ascend.config`` reads and checks.

And what ``drafting.window`` comes to for one layer of the draft. A window of W tokens lets a token
attend to itself and to the W - 1 before it. The keys before them are never read again, so their
blocks are given back: the layer is planned as any sliding window.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from mkv_ascend.layout.kind import Kind, Word

NAMESPACE = "mkv_ascend"
"""The key of ``--additional-config`` that holds our options."""


def option(default: Any, description: str, **schema: Any) -> Any:
    """A field of the options, with what a JSON schema says of its values.

    ``allowed`` is for messages alone: what a value may be, where the schema's words do not say it.
    """
    metadata = {"description": description, **schema}
    return field(default=default, metadata=metadata)


class WindowBound(Word):
    """What a sliding window of W tokens passes to operators whose left bound is inclusive."""

    EXACT = "exact"
    """W - 1, so that a token sees W tokens, itself included, as the model was trained."""
    VLLM_ASCEND = "vllm_ascend"
    """What vllm-ascend 0.23.0 passes, W, so that a token sees W + 1."""


@dataclass(frozen=True)
class RoleOptions:
    """Backends of one role: one for all of its layers, or one for each kind, or nothing."""

    every_kind: str | None = None
    """Canonical name of the backend of every layer of the role."""
    by_kind: tuple[tuple[Kind, str], ...] = ()
    """Canonical names by kind, in the order given; excludes ``every_kind``."""

    def backend_of(self, kind: Kind) -> str | None:
        """The backend asked for a layer of ``kind``, if any."""
        return dict(self.by_kind).get(kind, self.every_kind)


@dataclass(frozen=True)
class AttentionOptions:
    """Which attention backend serves which layer."""

    target: RoleOptions = option(
        RoleOptions(), "The backend of the target: one name, or a name for each kind of layer."
    )
    draft: RoleOptions = option(
        RoleOptions(),
        "The backend of the draft, which never inherits the target's choice: one name, or a name "
        "for each kind of layer.",
    )
    layers: tuple[tuple[str, str], ...] = option(
        (),
        "Regular expression, which must match a whole layer name -> backend. It comes before "
        "target and draft.",
    )
    """Each with the canonical name of its backend."""
    window_bound: WindowBound = option(
        WindowBound.EXACT,
        "What a window of W tokens passes to operators whose left bound is inclusive: W - 1 "
        "(exact), or W (vllm_ascend).",
        enum=[bound.value for bound in WindowBound],
    )


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
