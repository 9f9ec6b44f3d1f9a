# SPDX-License-Identifier: Apache-2.0
"""How the blocks of a KV group lie in the pages that groups share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class PageShape:
    """How the blocks of a group lie in a page.

    Attributes:
        per_stretch: blocks to a stretch of a plane (k).
        stretches: planes of a component (S).
    """

    per_stretch: int = 1
    stretches: int = 1

    @property
    def blocks(self) -> int:
        """Blocks in a page."""
        return self.per_stretch * self.stretches

    def pages(self, blocks: int) -> int:
        """Least pages that hold so many blocks."""
        return -(-blocks // self.blocks)

    def share(self, blocks: int) -> float:
        """Pages of many requests with so many blocks each, by request: they fill each other's."""
        return blocks / self.blocks

    def ids(self, page: int, pages: int) -> list[int]:
        """The ids of the blocks in ``page`` of ``pages``, in ascending order.

        Block ``j`` of stretch ``s`` has the id ``(s * pages + page) * per_stretch + j``.
        """
        return [
            (stretch * pages + page) * self.per_stretch + place
            for stretch in range(self.stretches)
            for place in range(self.per_stretch)
        ]


ONE_BLOCK = PageShape()
"""A page is a block."""


def are_blocks(shapes: Iterable[PageShape]) -> bool:
    """Whether a page is one block of every group, whose ids are then those of pages."""
    return all(shape == ONE_BLOCK for shape in shapes)


def counted_in(shapes: Iterable[PageShape]) -> str:
    """What memory is counted in, for texts."""
    return "block" if are_blocks(shapes) else "page"
