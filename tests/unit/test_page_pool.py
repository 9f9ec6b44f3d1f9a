# SPDX-License-Identifier: Apache-2.0
"""Pages that groups share, on random traces against memory that is told cell by cell.

The model knows no pages of the pool: only that a group's tensors are contiguous, so that the block
``id`` of a group with k blocks to a stretch has the cells ``id * W / k`` onwards of a memory of
``planes * pages * W`` cells.
"""

import random
from collections.abc import Callable
from typing import Any

import pytest

from mkv_ascend.layout.component import PageShape
from mkv_ascend.page_pool import PagePool, PoolError
from tests.support.page_memory import SHAPES, Block, Memory, trace


@pytest.mark.parametrize("seed", range(60))
def test_random_traces(seed: int) -> None:
    trace(seed)


def traces(most: int) -> None:
    for seed in range(most):
        trace(seed)


# Planted mistakes are noticed.


def swapped_ids(self: PageShape, page: int, pages: int) -> list[int]:
    return [
        (place * pages + page) * self.stretches + stretch
        for stretch in range(self.stretches)
        for place in range(self.per_stretch)
    ]


def ids_of_the_page_before(self: PageShape, page: int, pages: int) -> list[int]:
    return page_pool_ids(self, page - 1, pages)


def a_page_too_few(self: Any, group: int, count: int, revived: Any = ()) -> int:
    return max(0, pages_needed(self, group, count, revived) - 1)


def no_promise(self: Any, state: Any) -> bool:
    return bool(self.free_pages) or not state.partly


def a_page_that_is_used(self: Any) -> Any:
    page = next_page(self)
    used = [other for other in self._made if other.used]
    return used[0] if used else page


def without_eviction(self: Any, page: Any) -> None:
    page.bare.update(page.kept)
    page.kept = {}


def released_twice(self: Any, blocks: Any) -> None:
    release(self, blocks := list(blocks))
    release(self, blocks[:1])


def revived_without_page(self: Any, page: Any, state: Any) -> None:
    (self._kept if page in self._kept else self._bare).pop(page)
    state.partly[page] = None
    self.free_pages -= 1


page_pool_ids = PageShape.ids
pages_needed, next_page, release = PagePool.pages_needed, PagePool._next_page, PagePool.release
MISTAKES: list[tuple[type, str, Callable[..., Any]]] = [
    (PageShape, "ids", swapped_ids),
    (PageShape, "ids", ids_of_the_page_before),
    (PagePool, "pages_needed", a_page_too_few),
    (PagePool, "_may_take_page", no_promise),
    (PagePool, "_next_page", a_page_that_is_used),
    (PagePool, "_evict_all", without_eviction),
    (PagePool, "release", released_twice),
    (PagePool, "_revive", revived_without_page),
]


@pytest.mark.parametrize(
    ("owner", "name", "mistake"), MISTAKES, ids=[mistake.__name__ for *_, mistake in MISTAKES]
)
def test_mistakes_are_noticed(
    owner: type, name: str, mistake: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, mistake)
    with pytest.raises((AssertionError, PoolError, KeyError, StopIteration, IndexError)):
        traces(200)


# Single behaviours.


def test_ids_are_indices_of_contiguous_tensors() -> None:
    shape = PageShape(per_stretch=2, stretches=3)
    assert shape.ids(1, 4) == [2, 3, 10, 11, 18, 19]
    every = sorted(number for page in range(4) for number in shape.ids(page, 4))
    assert every == list(range(4 * shape.blocks))


def test_pages_without_hits_are_taken_first_and_then_the_least_recently_used() -> None:
    memory = Memory(5, [PageShape(2, 1)], seed=0)
    first, second, bare = (memory.admit([2], [[]]) for _ in range(3))
    assert first
    assert second
    assert bare
    for request in (first, second):
        memory.name(request.held[0][0])
    for request in (second, first, bare):
        memory.finish(request)
    held = [block.block_id for block in (*bare.held[0], *second.held[0], *first.held[0])]
    taken = [block.block_id for block in memory.take(0, 8)]
    assert taken[:2] == held[:2]
    assert sorted(taken[2:4]) == [8, 9]
    assert taken[4:] == held[2:]


def test_a_hit_is_kept_while_there_are_pages_and_goes_before_the_request_waits() -> None:
    memory = Memory(3, [PageShape(2, 1)], seed=0)
    request = memory.admit([2], [[]])
    assert request
    named, other = request.held[0]
    memory.name(named)
    memory.free([request.held[0].pop(0)])
    memory.take(0, 2)
    assert memory.hits
    assert memory.pool.free_pages == 0
    assert memory.take(0, 1) == [named]
    assert not memory.hits
    with pytest.raises(PoolError, match="asks for 1 blocks of 0"):
        memory.pool.take(0, 1)
    assert other.users == 1


def test_blocks_that_are_not_the_callers_are_refused() -> None:
    memory = Memory(2, [PageShape(2, 1), PageShape(1, 1)], seed=0)
    (block, rest) = memory.take(0, 2)
    with pytest.raises(PoolError, match="not free"):
        memory.pool.hold(block)
    memory.pool.release([block, rest])
    with pytest.raises(PoolError, match="not used"):
        memory.pool.release([block])
    memory.pool.take(1, 1)
    with pytest.raises(PoolError, match="not free"):
        memory.pool.hold(block)
    with pytest.raises(PoolError, match="not used"):
        memory.pool.release([block])
    with pytest.raises(ValueError, match="cannot hold"):
        PagePool(3, [PageShape(0, 1)], Block, memory.evict)


def test_objects_are_made_when_a_page_is_taken() -> None:
    made: list[Block] = []

    def make(group: int, number: int) -> Block:
        made.append(Block(group, number))
        return made[-1]

    pool = PagePool(10**7, [PageShape(4, 2)], make, lambda block: None)
    assert not made
    pool.release(pool.take(0, 9))
    pool.take(0, 3)
    assert len(made) == 16


# A request that fits, and not beside what it finds.

LONG, SHORT = 6, 6
"""Blocks of one request in two groups with four and three to a page: two and two pages."""


def spread(memory: Memory) -> list[list[Block]]:
    """Hits of one prompt, each in another page."""
    hits: list[list[Block]] = [[], []]
    for number in range(4):
        request = memory.admit([4, 0], [[], []])
        assert request
        hits[0].append(request.held[0][number % 4])
    for block in hits[0]:
        memory.name(block)
    for request in list(memory.requests):
        memory.finish(request)
    return hits


def rounds_until_it_fits(memory: Memory, hits: list[list[Block]], most: int = 50) -> int:
    """How often a lone request asks, with the hits that there are; ``most`` if for ever."""
    for number in range(most):
        found = [[block for block in group if block.block_hash is not None] for group in hits]
        if memory.admit([LONG - len(found[0]), SHORT - len(found[1])], found):
            return number
        memory.pool.note_scattered()
    return most


def test_scattered_hits_do_not_keep_a_lone_request_waiting(monkeypatch: Any) -> None:
    memory = Memory(5, [PageShape(4, 1), PageShape(1, 3)], seed=0)
    assert rounds_until_it_fits(memory, spread(memory)) == 1
    assert memory.pool.used_pages == 4
    monkeypatch.setattr(PagePool, "note_scattered", lambda self: None)
    memory = Memory(5, [PageShape(4, 1), PageShape(1, 3)], seed=0)
    assert rounds_until_it_fits(memory, spread(memory)) == 50


def grown_to_the_end(memory: Memory, hits: list[list[Block]], most: int = 50) -> int:
    """How often a request that grows block by block begins anew until it is complete."""
    for number in range(most):
        found = [[block for block in group if block.block_hash is not None] for group in hits]
        if (request := memory.admit([0, 0], found)) is None:
            memory.pool.note_scattered()
            continue
        while [len(held) for held in request.held] != [LONG, SHORT]:
            missing = [int(len(request.held[0]) < LONG), int(len(request.held[1]) < SHORT)]
            if sum(memory.pool.admit(group, missing[group]) for group in (0, 1)) > (
                memory.pool.free_pages
            ):
                memory.pool.note_scattered()
                break
            for group in (0, 1):
                request.held[group] += memory.take(group, missing[group])
        else:
            return number
        memory.finish(request)
        assert not memory.pool.is_closed
    return most


def test_a_request_that_is_its_own_obstacle_begins_anew_without_hits(monkeypatch: Any) -> None:
    memory = Memory(5, [PageShape(4, 1), PageShape(1, 3)], seed=0)
    assert grown_to_the_end(memory, [spread(memory)[0][:3], []]) == 1
    assert not memory.hits
    closed = [memory.pool.is_closed]
    memory.finish(memory.requests[0])
    assert [*closed, memory.pool.is_closed] == [True, False]
    monkeypatch.setattr(PagePool, "note_scattered", lambda self: None)
    memory = Memory(5, [PageShape(4, 1), PageShape(1, 3)], seed=0)
    assert grown_to_the_end(memory, [spread(memory)[0][:3], []]) == 50


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("caches", [False, True])
def test_a_lone_request_is_compact(seed: int, caches: bool) -> None:
    """With hashes of its own it is, too, once it began anew because it did not fit."""
    draw = random.Random(seed)
    memory = Memory(300, draw.choice(SHAPES), seed)
    groups = range(len(memory.shapes))
    memory.admit([1 for _ in groups], [[] for _ in groups])
    if caches:
        memory.pool.note_scattered()
    memory.finish(memory.requests[0])
    held: list[list[Block]] = [[] for _ in groups]
    most = [0 for _ in groups]
    for _ in range(150):
        for group in groups:
            if draw.random() < 0.6:
                held[group] += memory.take(group, draw.randrange(4))
            elif len(held[group]) > 1:
                memory.free([held[group].pop(0) for _ in range(draw.randrange(len(held[group])))])
            if caches and draw.random() < 0.5:
                for block in held[group]:
                    memory.name(block)
            most[group] = max(most[group], len(held[group]))
        compact = sum(
            -(-count // shape.blocks) for count, shape in zip(most, memory.shapes, strict=True)
        )
        assert memory.pool.used_pages <= compact
        memory.check()
