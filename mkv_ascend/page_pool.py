# SPDX-License-Identifier: Apache-2.0
"""Memory in pages that KV groups share, and in a page the blocks of the one group that owns it.

Memory is ``pages`` pages. Ids of blocks are indices of each contiguous tensor of the group
(``PageShape.ids``), so ids of different groups may be the same number. A page belongs to one group
at a time. Page 0 is never given; id 0 is the null block of all groups.

A free block may keep a hash, the name of what was computed in it: then it can be used again, as a
hit, until it or its page is given to somebody else. Every operation is O(1) for each block, and
O(blocks of a page) for each page that changes hands.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from mkv_ascend.layout.component import PageShape


class PoolError(ValueError):
    """A block or a number of blocks that the caller has no right to."""


class PooledBlock(Protocol):
    """What the pool needs of a block; ``page`` and ``is_free`` belong to the pool.

    ``block_id``: its id in its group. ``page``: where it is; None once another group has the page.
    ``is_free``: whether nobody uses it. ``block_hash``: the name of what is in it; None where that
    is of no use.
    """

    block_id: int
    page: Any
    is_free: bool

    @property
    def block_hash(self) -> object: ...


B = TypeVar("B", bound=PooledBlock)


@dataclass(slots=True, eq=False)
class Page(Generic[B]):
    """A page that somebody has owned: its place in memory, and the group that has or had it last.

    ``bare``: free blocks without a hash, by id. ``kept``: those with one, in the order in which
    they were freed; the user of the pool may take all hashes while no block is used. ``used``: how
    many are not free. ``of_group``: the blocks of each group that had it: making them takes longer
    than all else that is done to a page.
    """

    number: int
    group: int = -1
    blocks: list[B] = field(default_factory=list)
    bare: dict[int, B] = field(default_factory=dict)
    kept: dict[int, B] = field(default_factory=dict)
    used: int = 0
    of_group: dict[int, list[B]] = field(default_factory=dict)


Pages = OrderedDict[Page[B], None]
"""Pages in an order, with removal from anywhere."""


@dataclass(slots=True)
class _Group(Generic[B]):
    """A group's pages with free blocks.

    ``size``: blocks in a page. ``open``: owned pages with free blocks without a hash. ``partly``:
    owned pages with free blocks with a hash; last those that got one last. ``free``: free blocks in
    owned pages.
    """

    number: int
    shape: PageShape
    size: int
    open: Pages[B] = field(default_factory=OrderedDict)
    partly: Pages[B] = field(default_factory=OrderedDict)
    free: int = 0


class PagePool(Generic[B]):
    """Gives blocks to groups, a page at a time.

    Args:
        pages: number of pages, the null block's among them.
        shapes: of each group.
        make_block: makes a block from its group and id.
        on_evict: told of a free block with a hash that is about to be given away; takes the hash.

    Raises:
        ValueError: no page for a block, or a shape without blocks.
    """

    def __init__(
        self,
        pages: int,
        shapes: Sequence[PageShape],
        make_block: Callable[[int, int], B],
        on_evict: Callable[[B], object],
    ) -> None:
        if pages < 1 or any(min(shape.per_stretch, shape.stretches) < 1 for shape in shapes):
            raise ValueError(f"{pages} pages cannot hold blocks of {list(shapes)}")
        self.pages = pages
        self.shapes = tuple(shapes)
        self._make_block = make_block
        self._on_evict = on_evict
        self._groups = [_Group[B](index, shape, shape.blocks) for index, shape in enumerate(shapes)]
        self._made: list[Page[B]] = []  # Page number i + 1; the others were never given.
        self._bare: Pages[B] = OrderedDict()
        self._kept: Pages[B] = OrderedDict()
        self.promised = [0] * len(self.shapes)
        """Free pages that an admission has set aside for each group."""
        self._is_scattered = False
        self._is_compact = False
        self.free_pages = pages - 1
        """Pages of which nobody uses a block."""

    @property
    def used_pages(self) -> int:
        return self.pages - 1 - self.free_pages

    @property
    def all_promised(self) -> int:
        """Free pages that are set aside for any group."""
        return sum(self.promised)

    def room(self, group: int) -> int:
        """Blocks that the group could take now."""
        state = self._groups[group]
        return state.free + self.free_pages * state.size

    def blocks(self) -> Iterator[B]:
        """All blocks that are or were used in the pages that their group had last."""
        for page in self._made:
            yield from page.blocks

    # Admission.

    def pages_needed(self, group: int, count: int, revived: Sequence[B] = ()) -> int:
        """Free pages that ``hold`` of the revived and then ``take`` of ``count`` blocks use up.

        ``revived``: blocks of the group, beside the new ones; those that are free are counted.
        """
        state = self._groups[group]
        if not revived and count <= state.free:
            return 0
        blocks = {block.block_id: block for block in revived if block.page and block.is_free}
        pages = {block.page.number for block in blocks.values() if not block.page.used}
        room = state.free + len(pages) * state.size - len(blocks)
        return len(pages) + max(0, -((room - count) // state.size))

    def admit(self, group: int, count: int, revived: Sequence[B] = ()) -> int:
        """``pages_needed``, set aside for the group until it takes them or is admitted again.

        ``take`` prefers a free page to a hash. Without promises a group would take pages for hashes
        that the other groups of the same admission need.
        """
        self.promised[group] = self.pages_needed(group, count, revived)
        return self.promised[group]

    # Blocks.

    def take(self, group: int, count: int) -> list[B]:
        """Give ``count`` blocks to the group; PoolError and none where there are fewer.

        Free blocks without a hash in pages that it owns come first, then free pages, then free
        blocks with a hash in pages that it owns.
        """
        if count > self.room(group):
            raise PoolError(f"group {group} asks for {count} blocks of {self.room(group)}")
        state = self._groups[group]
        taken: list[B] = []
        while left := count - len(taken):
            if not state.open:
                if state.partly and not self._may_take_page(state):
                    self._evict_first(state)
                else:
                    page = self._next_page()
                    self._own(page, state)
                    if left >= state.size:  # Whole: nothing of it is free for anybody.
                        taken += page.blocks
                        page.bare, page.used = {}, state.size
                        state.free -= state.size
                        continue
                    page.bare = {block.block_id: block for block in reversed(page.blocks)}
                    state.open[page] = None
            page = next(iter(state.open))
            number = min(left, len(page.bare))
            taken += [page.bare.popitem()[1] for _ in range(number)]
            if not page.bare:
                state.open.pop(page)
            page.used += number
            state.free -= number
        for block in taken:
            block.is_free = False
        return taken

    def hold(self, block: B) -> None:
        """Use a free block again, with what is in it.

        PoolError where it is in use, or its page was given away.
        """
        if block.page is None or not block.is_free:
            raise PoolError(f"block {block.block_id} is not free, so it cannot be a hit")
        page: Page[B] = block.page
        state = self._groups[page.group]
        if not page.used:
            self._revive(page, state)
        for free, pages in ((page.kept, state.partly), (page.bare, state.open)):
            if free.pop(block.block_id, None) is not None and not free:
                pages.pop(page)
        block.is_free = False
        page.used += 1
        state.free -= 1

    def release(self, blocks: Iterable[B]) -> None:
        """Free used blocks, of any groups. Those with a hash are given away in this order.

        PoolError where one is free already, or not of this pool.
        """
        groups = self._groups
        for block in blocks:
            page: Page[B] | None = block.page
            if page is None or block.is_free:
                raise PoolError(f"block {block.block_id} is not used, so it cannot be freed")
            block.is_free = True
            page.used -= 1
            state = groups[page.group]
            is_bare = block.block_hash is None
            (page.bare if is_bare else page.kept)[block.block_id] = block
            if not page.used:
                self._give_back(page, state)
                continue
            state.free += 1
            if is_bare:
                state.open[page] = None
            else:
                state.partly[page] = None
                state.partly.move_to_end(page)

    # Requests that fit in memory, and not beside what they find in it.

    @property
    def is_closed(self) -> bool:
        """Whether requests that have no block yet should wait.

        Either a request that has all used pages to itself has not enough, and is about to give them
        back, or it did so and has begun again.
        """
        return (self._is_scattered or self._is_compact) and self.used_pages > 0

    def note_scattered(self) -> None:
        """Say that a request does not fit although no other one has pages.

        Hits may lie in more pages than there are, one in each. A request that finds them waits, or
        gives its pages back and finds them again, for ever. So all hashes are dropped, at once or
        when no page is used, and in the latter case the next one begins alone and takes a page
        only where no block of its own is free. Then it needs no more pages than its blocks fill.
        """
        if self.used_pages:
            self._is_scattered = True
        else:
            self._drop_hashes()

    def _drop_hashes(self) -> None:
        while self._kept:
            page, _ = self._kept.popitem(last=False)
            self._evict_all(page)
            self._bare[page] = None

    # Pages.

    def _may_take_page(self, state: _Group[B]) -> bool:
        """Whether the group takes a free page next, before hashes in its own pages."""
        if self._is_compact or not self.free_pages:
            return False
        return self.promised[state.number] > 0 or self.free_pages > self.all_promised

    def _next_page(self) -> Page[B]:
        """The free page that is missed least: without hashes, or the least recently used."""
        if self._bare:
            return self._bare.popitem()[0]
        if len(self._made) < self.pages - 1:
            self._made.append(Page(len(self._made) + 1))
            return self._made[-1]
        return self._kept.popitem(last=False)[0]

    def _own(self, page: Page[B], state: _Group[B]) -> None:
        """Make a free page, of no order any more, the group's, which then takes its blocks."""
        if page.kept:
            self._evict_all(page)
        if page.group != state.number:
            for block in page.blocks:
                block.page = None
            page.group = state.number
            if page.group not in page.of_group:
                ids = state.shape.ids(page.number, self.pages)
                page.of_group[page.group] = [self._make_block(page.group, one) for one in ids]
            page.blocks = page.of_group[page.group]
            for block in page.blocks:
                block.page, block.is_free = page, True
        self._use_page(state)

    def _revive(self, page: Page[B], state: _Group[B]) -> None:
        """Make a free page its last owner's again, as it is."""
        (self._kept if page in self._kept else self._bare).pop(page)
        if page.bare:
            state.open[page] = None
        if page.kept:
            state.partly[page] = None
        self._use_page(state)

    def _use_page(self, state: _Group[B]) -> None:
        state.free += state.size
        self.free_pages -= 1
        if self.promised[state.number]:
            self.promised[state.number] -= 1

    def _give_back(self, page: Page[B], state: _Group[B]) -> None:
        """Make an owned page, the last of whose blocks was just freed, a free page."""
        if state.size > 1:
            state.free -= state.size - 1
            state.open.pop(page, None)
            state.partly.pop(page, None)
        (self._kept if page.kept else self._bare)[page] = None
        self.free_pages += 1
        if not self.used_pages:
            self._is_compact = self._is_scattered
            if self._is_scattered:
                self._is_scattered = False
                self._drop_hashes()

    def _evict_all(self, page: Page[B]) -> None:
        for block in page.kept.values():
            self._on_evict(block)
        page.bare.update(page.kept)
        page.kept = {}

    def _evict_first(self, state: _Group[B]) -> None:
        """Of the owned page in which the last was freed first, the block that was freed first."""
        page = next(iter(state.partly))
        block = page.kept.pop(next(iter(page.kept)))
        self._on_evict(block)
        page.bare[block.block_id] = block
        state.open[page] = None
        if not page.kept:
            state.partly.pop(page)
