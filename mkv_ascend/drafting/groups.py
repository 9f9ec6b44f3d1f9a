# SPDX-License-Identifier: Apache-2.0
"""The groups of the draft's layers that share a block table and attention metadata."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass


@dataclass(frozen=True)
class DraftGroup:
    """Layers of the draft that share one metadata object in every pass.

    Attributes:
        kv_group: id of the KV group whose block table the layers use.
        table: index of that KV group among those of the draft; it selects the row of slots.
        backend: attention backend class of the layers.
        spec: the host's spec of their cache, in kernel blocks.
        heads: query heads of a layer.
        layer_names: the layers, in the order in which the draft runs them.
        causal: whether a row of theirs sees no later row of a block of mask tokens. Rows of other
            passes never do.
    """

    kv_group: int
    table: int
    backend: type[object]
    spec: Hashable
    heads: int | None
    layer_names: tuple[str, ...]
    causal: bool = False


@dataclass(frozen=True)
class DraftGroups:
    """All groups of one draft.

    Attributes:
        groups: in the order in which the draft first runs one of their layers.
        kv_groups: ids of the KV groups, each once; ``DraftGroup.table`` is an index into these.
        block_sizes: tokens in a kernel block of each of ``kv_groups``.
    """

    groups: tuple[DraftGroup, ...]
    kv_groups: tuple[int, ...]
    block_sizes: tuple[int, ...]

    def layers(self) -> tuple[tuple[str, int], ...]:
        """Each layer with the index of its group, sorted by group."""
        return tuple(
            (name, index) for index, group in enumerate(self.groups) for name in group.layer_names
        )

    def describe(self) -> str:
        """Each KV group of the draft and what its layers share, in words."""
        return "; ".join(
            f"KV group {group.kv_group}: {len(group.layer_names)} layers of "
            f"{type(group.spec).__name__} on {group.backend.__name__}"
            for group in self.groups
        )
