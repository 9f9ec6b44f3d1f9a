# SPDX-License-Identifier: Apache-2.0
"""Which key lies in which slot, in plain Python: the judge of the bookkeeping.

A key depends on all tokens up to its own. So a cell holds the number of a prefix, and a key is
right if it was written for that very prefix, by whichever request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from mkv_ascend.layout.component import PageShape

UNKNOWN = -1
"""What a cell holds that was never written, or written by rows whose keys nobody may read."""
NULL_BLOCK = 0
Cell = tuple[int, str, int]
"""KV group, model, slot."""
Block = tuple[int, int]
"""KV group, id."""


@dataclass(frozen=True)
class PageOf:
    """In which page a block of a group lies; without shapes each block id is a page."""

    pages: int = 0
    shapes: tuple[PageShape, ...] = ()

    def __call__(self, group: int, block: int) -> int:
        if not self.shapes:
            return block
        return block // self.shapes[group].per_stretch % self.pages


class BookkeepingError(AssertionError):
    """What holds in every step did not."""


class Prefixes:
    """Numbers prefixes of tokens: equal ones alike, whichever request they are of."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, int], int] = {}

    def of(self, tokens: Sequence[int]) -> list[int]:
        """The number of each prefix; the first is that of the first token alone."""
        number, found = 0, []
        for token in tokens:
            number = self._numbers.setdefault((number, token), len(self._numbers) + 1)
            found.append(number)
        return found


@dataclass
class Owned:
    """The blocks that each request has in this step, by group and column."""

    blocks: dict[str, tuple[list[int], ...]]
    page_of: PageOf = PageOf()
    places: dict[Block, tuple[int, int]] = field(default_factory=dict)
    owners: dict[Block, set[str]] = field(default_factory=dict)
    groups: dict[int, int] = field(default_factory=dict)
    """The group that has each page."""

    def __post_init__(self) -> None:
        for request, groups in self.blocks.items():
            for group, blocks in enumerate(groups):
                for column, block in enumerate(blocks):
                    if block != NULL_BLOCK:
                        self._add(request, (group, block), (group, column))

    def _add(self, request: str, block: Block, place: tuple[int, int]) -> None:
        page = self.page_of(*block)
        if page == 0 or self.groups.setdefault(page, place[0]) != place[0]:
            raise BookkeepingError(
                f"page {page} is of group {self.groups.get(page)} and {place[0]}"
            )
        owners = self.owners.setdefault(block, set())
        if request in owners or self.places.setdefault(block, place) != place:
            raise BookkeepingError(
                f"block {block} is at (group, column) {self.places[block]} of {sorted(owners)} "
                f"and at {place} of {request}"
            )
        owners.add(request)


class Cells:
    """The caches of all layers; those of one group and one model stand for each other.

    A page belongs to one group at a time. Groups share memory, so that a group's first write to
    a page destroys what another group had in it.
    """

    def __init__(self, block_sizes: Sequence[int]) -> None:
        self.block_sizes = tuple(block_sizes)
        self.owned = Owned({})
        self._pages: dict[int, tuple[int, dict[Cell, int]]] = {}
        """Page -> the group that wrote to it last, and the prefix in each of its cells."""
        self._writers: dict[Cell, str] = {}
        """Of this step: who wrote to a cell."""
        self._readers: dict[Cell, set[str]] = {}
        """Who found the right key in a cell, which stays there while they have the block."""

    def begin_step(self, owned: Owned) -> None:
        """Blocks of the next step; what is written in it, one request alone may write."""
        self.owned = owned
        self._writers.clear()

    def slot(self, request: str, group: int, position: int) -> int:
        """Where the scheduler's blocks have a position of a request."""
        column, offset = divmod(position, self.block_sizes[group])
        blocks = self.owned.blocks[request][group]
        if column >= len(blocks):
            raise BookkeepingError(
                f"{request} has {len(blocks)} blocks of {self.block_sizes[group]} tokens in group "
                f"{group}: none for position {position}"
            )
        return blocks[column] * self.block_sizes[group] + offset

    def write(self, request: str, group: int, model: str, slot: int, prefix: int) -> None:
        """Write a key.

        Raises:
            BookkeepingError: the slot is no slot of the request in this group, or another request
                counts on what is there.
        """
        block = slot // self.block_sizes[group]
        place = self.owned.places.get((group, block), (None, None))
        owners = self.owned.owners.get((group, block), set())
        if place[0] != group or request not in owners:
            raise BookkeepingError(
                f"{request} writes to block {block} in group {group}, which is at {place} of "
                f"{sorted(owners)}"
            )
        page = self.owned.page_of(group, block)
        if self._pages.get(page, (None, None))[0] != group:
            self._pages[page] = group, {}
        cells, cell = self._pages[page][1], (group, model, slot)
        writer = self._writers.setdefault(cell, request)
        # A block may be found by another request in the step in which it is filled.
        readers = self._readers.get(cell, set()) & owners - {request}
        if writer != request or (readers and cells.get(cell, UNKNOWN) != prefix):
            raise BookkeepingError(
                f"{request} writes another key to block {block} than {sorted({writer, *readers})}"
            )
        if cells.get(cell, UNKNOWN) != prefix:
            self._readers.pop(cell, None)
            cells[cell] = prefix

    def require(
        self, request: str, group: int, model: str, slot: int, prefix: int, position: int
    ) -> None:
        """Read a key.

        Raises:
            BookkeepingError: it was not written for this prefix, or is gone.
        """
        block = slot // self.block_sizes[group]
        writer, cells = self._pages.get(self.owned.page_of(group, block), (group, {}))
        found = cells.get((group, model, slot), UNKNOWN) if writer == group else UNKNOWN
        if found != prefix or block == NULL_BLOCK:
            raise BookkeepingError(
                f"{request} reads the {model}'s key of position {position} in group {group} from "
                f"block {block}, where the key of prefix {found} is, not of {prefix}"
            )
        self._readers.setdefault((group, model, slot), set()).add(request)
