# SPDX-License-Identifier: Apache-2.0
"""The options under ``attention``, already checked: ``mkv_ascend.config`` reads them."""

from __future__ import annotations

from dataclasses import dataclass

from mkv_ascend.layout.kind import Kind, Word

NAMESPACE = "mkv_ascend"
"""The key of ``--additional-config`` that holds our options."""


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
    """The keys under ``attention``."""

    target: RoleOptions = RoleOptions()
    draft: RoleOptions = RoleOptions()
    layers: tuple[tuple[str, str], ...] = ()
    """Regular expression, which must match a whole layer name -> canonical backend name."""
    window_bound: WindowBound = WindowBound.EXACT
