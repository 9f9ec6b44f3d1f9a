# SPDX-License-Identifier: Apache-2.0
"""KV groups: layers that share a block table, since they keep the same tokens in equal blocks.

Their pages may differ. Which layers are a group, ``page_planning`` decides; here is what one is,
and what all cost one request in memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mkv_ascend.layout.kind import Role
from mkv_ascend.layout.page_shape import ONE_BLOCK, PageShape
from mkv_ascend.layout.requirements import LayerRequirements
from mkv_ascend.layout.retention import Request, Retention

MIB = 2**20


class GroupingError(ValueError):
    """Layers that cannot be grouped; the message says what to change."""


@dataclass(frozen=True)
class Group:
    """One KV group: layer names with a target's layer first where there is one.

    ``blocks``: blocks of ``block_size`` tokens that one request holds. ``shape``: blocks in a page.
    """

    layers: tuple[str, ...]
    block_size: int
    blocks: int
    has_draft: bool
    retention: Retention
    shape: PageShape = ONE_BLOCK

    def pages(self, request: Request) -> int:
        """Pages that ``request`` holds where it is alone."""
        return self.shape.pages(self.retention.blocks(self.block_size, request))

    def page_share(self, request: Request) -> float:
        """The same of one of many like it."""
        return self.shape.share(self.retention.blocks(self.block_size, request))


@dataclass(frozen=True)
class Cost:
    """What a grouping costs one request. ``needed_bytes``: the same without any padding.

    ``page_bytes``: bytes of one page over all pools; ``pages``: that the request holds.
    """

    groups: int
    pages: int
    page_bytes: int
    needed_bytes: int = 0

    @property
    def held_bytes(self) -> int:
        """Bytes of the pages that the request holds."""
        return self.pages * self.page_bytes

    @property
    def padding_fraction(self) -> float:
        """Share of the held bytes that holds nothing of the request."""
        return max(0.0, 1 - self.needed_bytes / self.held_bytes) if self.held_bytes else 0.0

    def pages_in(self, memory_bytes: int | None) -> int | None:
        """Pages that fit into the memory; None where that or the bytes of a page are unknown."""
        return memory_bytes // self.page_bytes if memory_bytes and self.page_bytes else None

    def requests_in(self, memory_bytes: int | None) -> float | None:
        """Requests that fit at once, vLLM's null block taken off."""
        found = self.pages_in(memory_bytes)
        return None if found is None or not self.pages else max(found - 1, 0) / self.pages

    def __str__(self) -> str:
        groups = f"{self.groups} group" + ("s" if self.groups != 1 else "")
        return f"{groups}, {self.held_bytes / MIB:.0f} MiB, {self.padding_fraction:.1%} padding"


@dataclass(frozen=True)
class Grouping:
    """The groups, and what they cost."""

    groups: tuple[Group, ...]
    cost: Cost

    @property
    def prefix_hit_tokens(self) -> int:
        """Tokens that prefix hits are multiples of."""
        return prefix_hit_tokens(self.groups)


def prefix_hit_tokens(groups: Iterable[Group]) -> int:
    """Prefix hits are multiples of this many tokens (vLLM's ``scheduler_block_size``).

    A block of compressed keys stands for more tokens than it has rows. States have no say in it
    where they are not cached by prefix.
    """
    return math.lcm(*(group.retention.tokens_of_block(group.block_size) for group in groups))


def check_names(needs: Sequence[LayerRequirements]) -> None:
    """Raises GroupingError where two layers have one name."""
    seen: set[str] = set()
    for need in needs:
        if need.name in seen:
            raise GroupingError(
                f"two layers are named {need.name!r}; a layer is known by its name, so each needs "
                "its own (give the draft's layers a prefix)"
            )
        seen.add(need.name)


def multiples_of_hash(
    need: LayerRequirements, sizes: Sequence[int], hash_block_size: int | None
) -> tuple[int, ...]:
    """Those that ``hash_block_size`` divides, all of a state's; GroupingError where none is."""
    divisor = (hash_block_size or 1) if need.row_bytes else 1
    allowed = tuple(size for size in sizes if size % divisor == 0)
    if not allowed:
        raise GroupingError(
            f"layer {need.name}: of its block sizes {sizes} none is a multiple "
            f"of hash_block_size {divisor}; choose a hash_block_size that divides one of them"
        )
    return allowed


def targets_first(layers: Iterable[LayerRequirements]) -> list[LayerRequirements]:
    """The layers of a target, then a draft's, each in their order."""
    return sorted(layers, key=lambda need: need.role is not Role.TARGET)


def group_of(layers: Iterable[LayerRequirements], block_size: int, request: Request) -> Group:
    """The group of these layers, which keep the same tokens."""
    members = targets_first(layers)
    retention = members[0].retention
    return Group(
        layers=tuple(need.name for need in members),
        block_size=block_size,
        blocks=retention.blocks(block_size, request),
        has_draft=any(need.role is Role.DRAFT for need in members),
        retention=retention,
    )
