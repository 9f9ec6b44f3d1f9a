# SPDX-License-Identifier: Apache-2.0
"""Memory of a page pool written down cell by cell, and requests drawn over it."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from mkv_ascend.layout.component import PageShape
from mkv_ascend.page_pool import PagePool


@dataclass(eq=False, slots=True)
class Block:
    group: int
    block_id: int
    page: Any = None
    is_free: bool = False
    block_hash: int | None = None
    stamp: int = 0
    users: int = 0


@dataclass
class Request:
    """The blocks of a request in each group."""

    held: list[list[Block]] = field(default_factory=list)


class Memory:
    """A pool, requests, and what every cell of memory holds and who uses it."""

    def __init__(self, pages: int, shapes: Sequence[PageShape], seed: int) -> None:
        self.pages, self.shapes = pages, tuple(shapes)
        self.draw = random.Random(seed)
        self.cells_of_stretch = math.lcm(*(shape.per_stretch for shape in shapes))
        planes = max(shape.stretches for shape in shapes)
        self.stamps = [0] * (planes * pages * self.cells_of_stretch)
        self.users: list[Block | None] = [None] * len(self.stamps)
        self.hits: dict[int, Block] = {}
        self.counter = 0
        self.requests: list[Request] = []
        self.pool: PagePool[Block] = PagePool(pages, shapes, Block, self.evict)

    def evict(self, block: Block) -> None:
        assert block.block_hash is not None
        assert not block.users
        del self.hits[block.block_hash]
        block.block_hash = None

    def cells(self, block: Block) -> range:
        width = self.cells_of_stretch // self.shapes[block.group].per_stretch
        return range(block.block_id * width, (block.block_id + 1) * width)

    def use(self, block: Block) -> None:
        for cell in self.cells(block):
            assert self.users[cell] is None, "two users of a cell"
            self.users[cell] = block

    # What a scheduler does.

    def admit(self, counts: Sequence[int], hits: Sequence[Sequence[Block]]) -> Request | None:
        """A request with so many new blocks and these hits in each group, if there is room."""
        needed = [
            self.pool.admit(group, count, found)
            for group, (count, found) in enumerate(zip(counts, hits, strict=True))
        ]
        if sum(needed) > self.pool.free_pages:
            return None
        request = Request([[] for _ in counts])
        for group, found in enumerate(hits):
            for block in found:
                self.hold(block)
                request.held[group].append(block)
        for group, count in enumerate(counts):
            request.held[group] += self.take(group, count)
        self.requests.append(request)
        return request

    def hold(self, block: Block) -> None:
        assert all(self.stamps[cell] == block.stamp for cell in self.cells(block)), "bytes are gone"
        if not block.users:
            self.pool.hold(block)
            self.use(block)
        block.users += 1

    def take(self, group: int, count: int) -> list[Block]:
        blocks = self.pool.take(group, count)
        assert len(blocks) == count
        for block in blocks:
            assert (block.group, block.block_hash, block.users) == (group, None, 0)
            self.counter += 1
            block.stamp, block.users = self.counter, 1
            self.use(block)
            for cell in self.cells(block):
                self.stamps[cell] = block.stamp
        return blocks

    def free(self, blocks: Sequence[Block]) -> None:
        for block in blocks:
            block.users -= 1
        unused = [block for block in blocks if not block.users]
        for block in unused:
            for cell in self.cells(block):
                self.users[cell] = None
        self.pool.release(unused)

    def finish(self, request: Request) -> None:
        self.requests.remove(request)
        for held in request.held:
            self.free(held[::-1])

    def name(self, block: Block) -> None:
        """Give the block a hash, as one that is full."""
        if block.block_hash is None:
            self.counter += 1
            block.block_hash = self.counter
            self.hits[self.counter] = block

    # What must hold.

    def page_of(self, cell: int) -> int:
        return cell // self.cells_of_stretch % self.pages

    def check(self) -> None:
        owners: dict[int, set[int]] = {}
        for cell, block in enumerate(self.users):
            if block is not None:
                owners.setdefault(self.page_of(cell), set()).add(block.group)
        assert 0 not in owners, "the null page is used"
        assert all(len(groups) == 1 for groups in owners.values()), "a page of two groups"
        assert self.pool.used_pages == len(owners)
        for block in self.hits.values():
            assert all(self.stamps[cell] == block.stamp for cell in self.cells(block))
        used = [block for block in self.users if block is not None]
        assert all(block.users > 0 for block in used)


SHAPES = [
    [PageShape(), PageShape()],
    [PageShape(3, 2)],
    [PageShape(4, 1), PageShape(1, 3), PageShape(2, 2)],
    [PageShape(1, 5), PageShape(6, 1)],
    [PageShape(2, 1), PageShape(3, 4), PageShape(1, 1), PageShape(2, 2)],
]


def act(memory: Memory) -> None:
    """Something that a scheduler may do."""
    draw, groups = memory.draw, range(len(memory.shapes))
    action = draw.random()
    if action < 0.45 or not memory.requests:
        found = draw.sample(list(memory.hits.values()), min(len(memory.hits), draw.randrange(6)))
        hits = [[block for block in found if block.group == group] for group in groups]
        largest = [1 + shape.blocks * draw.choice((1, 3)) for shape in memory.shapes]
        if memory.admit([draw.randrange(most) for most in largest], hits) is None:
            if memory.requests:
                memory.finish(draw.choice(memory.requests))
            else:
                memory.pool.note_scattered()
                assert not memory.hits
    elif action < 0.6:
        memory.finish(draw.choice(memory.requests))
    elif action < 0.75:
        held = draw.choice(draw.choice(memory.requests).held)
        memory.free([held.pop(draw.randrange(len(held))) for _ in range(len(held) // 2)])
    elif action < 0.99:
        held = draw.choice(draw.choice(memory.requests).held)
        for block in held:
            if draw.random() < 0.6:
                memory.name(block)
    else:
        memory.pool.note_scattered()


def trace(seed: int, steps: int = 120) -> Memory:
    draw = random.Random(seed)
    memory = Memory(draw.randrange(5, 14), draw.choice(SHAPES), seed)
    for _ in range(steps):
        act(memory)
        memory.check()
    for request in list(memory.requests):
        memory.finish(request)
    memory.check()
    assert memory.pool.free_pages == memory.pages - 1
    return memory
