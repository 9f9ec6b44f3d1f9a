# SPDX-License-Identifier: Apache-2.0
"""What KV groups cost one request in memory."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 2**20


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
