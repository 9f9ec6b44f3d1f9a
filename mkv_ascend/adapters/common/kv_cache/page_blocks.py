# SPDX-License-Identifier: Apache-2.0
"""vLLM's block pool over pages that KV groups share (``mkv_ascend/page_pool.py``).

Hashes, hits, reference counts, KV events and metrics stay vLLM's code. What it counts as blocks of
its pool are pages here: ``num_gpu_blocks``, ``get_num_free_blocks``, ``get_usage`` and what a
request needs. Each group's manager has its own view of the pool, which knows whose blocks to give.

Ids of different groups may be the same number. So nothing can be asked by an id alone: KV
connectors are not served, and the worker is told of blocks by ``named`` ids.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import KVCacheBlock

from mkv_ascend.adapters.common.kv_cache.page_shapes import named, page_shapes_of
from mkv_ascend.adapters.patching import record
from mkv_ascend.layout.component import PageShape, are_blocks
from mkv_ascend.page_pool import Page, PagePool

PAGES = record(
    name="pages that groups share",
    target=(
        "vllm.v1.core.block_pool:BlockPool.__init__",
        "vllm.v1.core.block_pool:BlockPool.get_new_blocks",
    ),
    reads=(
        "vllm.v1.core.block_pool:BlockPool",
        "vllm.v1.core.kv_cache_coordinator:KVCacheCoordinator.__init__",
        "vllm.v1.core.kv_cache_coordinator:KVCacheCoordinator.get_num_blocks_to_allocate",
        "vllm.v1.core.kv_cache_manager:KVCacheManager.allocate_slots",
        "vllm.v1.core.kv_cache_manager:KVCacheManager.take_new_block_ids",
        "vllm.v1.core.kv_cache_utils:KVCacheBlock",
        "vllm.v1.core.single_type_kv_cache_manager:SingleTypeKVCacheManager",
        "vllm.v1.core.single_type_kv_cache_manager:MambaManager.get_num_blocks_to_allocate",
        "vllm_ascend.patch.platform.patch_kv_cache_coordinator:"
        "AscendHybridKVCacheCoordinator.__init__",
        "vllm_ascend.patch.platform.patch_mamba_manager:"
        "AscendMambaManager.get_num_blocks_to_allocate",
    ),
)

IMPOSSIBLE = 2**40
"""More blocks or pages than there can be; vLLM refuses a step to a request with such a number."""


class PageBlock(KVCacheBlock):
    """A block that knows its page; another block is another object."""

    __slots__ = ("is_free", "page")
    __eq__ = object.__eq__
    __hash__ = object.__hash__
    is_free: bool
    page: Page[Any] | None


class PageBlocks(BlockPool):
    """A block pool of pages.

    Args:
        stock: the pool that the host has made, with as many blocks as there are pages.
        shapes: of each group.
    """

    def __init__(self, stock: BlockPool, shapes: Sequence[PageShape]) -> None:
        super().__init__(
            1, stock.enable_caching, stock.hash_block_size, stock.enable_kv_cache_events
        )
        if (collector := stock.metrics_collector) is not None:
            self.metrics_collector: Any = _Metrics(collector)
        self.pages: PagePool[PageBlock] = PagePool(
            stock.num_gpu_blocks,
            shapes,
            lambda _, block_id: PageBlock(block_id),
            self._maybe_evict_cached_block,
        )
        self.num_gpu_blocks = stock.num_gpu_blocks
        self.blocks: Any = _Blocks(self.pages)
        self.free_block_queue: Any = _FreeBlocks(self.pages)

    def get_new_blocks(self, num_blocks: int) -> list[KVCacheBlock]:
        """Refuse: nobody says whose.

        Raises:
            TypeError: always.
        """
        raise TypeError(f"{num_blocks} blocks of no group are asked for")

    def take(self, group: int, count: int) -> list[PageBlock]:
        """``get_new_blocks`` for a group.

        Raises:
            ValueError: there are fewer.
        """
        blocks = self.pages.take(group, count)
        for block in blocks:
            block.ref_cnt += 1
        if self.metrics_collector is not None:
            for block in blocks:
                self.metrics_collector.on_block_evicted(block)
                self.metrics_collector.on_block_allocated(block)
        return blocks


class _FreeBlocks:
    """What vLLM's pool does with its queue of free blocks, done to pages."""

    def __init__(self, pages: PagePool[PageBlock]) -> None:
        self._pages = pages
        self.remove = pages.hold
        self.append_n = self.prepend_n = pages.release

    @property
    def num_free_blocks(self) -> int:
        """Free pages."""
        return self._pages.free_pages


class _Blocks:
    """All blocks. They have no order, since an id alone is nobody's."""

    def __init__(self, pages: PagePool[PageBlock]) -> None:
        self._pages = pages

    def __iter__(self) -> Iterator[PageBlock]:
        return self._pages.blocks()

    def __getitem__(self, block_id: int) -> PageBlock:
        raise TypeError(f"which group's block {block_id} is asked for? (KV connectors do)")


class _Metrics:
    """vLLM's collector counts by id; it is given one for each group's block."""

    def __init__(self, collector: Any) -> None:
        self._collector = collector
        self.reset = collector.reset

    def _tell(self, tell: Callable[[Any], None], block: Any) -> None:
        group = block.page.group if block.page is not None else -1
        tell(SimpleNamespace(block_id=(group, block.block_id)))

    def on_block_allocated(self, block: Any) -> None:
        self._tell(self._collector.on_block_allocated, block)

    def on_block_accessed(self, block: Any) -> None:
        if not block.is_null:
            self._tell(self._collector.on_block_accessed, block)

    def on_block_evicted(self, block: Any) -> None:
        self._tell(self._collector.on_block_evicted, block)


class GroupBlocks:
    """The pool as the manager of one group sees it."""

    num_gpu_blocks = IMPOSSIBLE
    """Managers return one more where a request is to wait for the next step."""

    def __init__(self, pool: PageBlocks, group: int) -> None:
        self.pool = pool
        self.group = group
        self.get_new_blocks = functools.partial(pool.take, group)
        for name in ("touch", "cache_full_blocks", "get_cached_block"):
            setattr(self, name, getattr(pool, name))

    def free_blocks(self, blocks: Iterable[Any], **how: Any) -> None:
        """As the pool does it; in most steps a window gives back none."""
        if blocks:
            self.pool.free_blocks(blocks, **how)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.pool, name)


def _counting_pages(manager: Any, view: GroupBlocks) -> Callable[..., int]:
    """A manager's ``get_num_blocks_to_allocate`` that tells pages, and sets them aside."""
    blocks_to_allocate = manager.get_num_blocks_to_allocate
    evictable_blocks = manager._get_num_evictable_blocks
    pages, group = view.pool.pages, view.group
    revived: list[Any] = []

    def evictable(blocks: Sequence[Any]) -> int:
        """Managers count hits that are free among the blocks; they are to be told apart."""
        revived.extend(block for block in blocks if not block.is_null and not block.ref_cnt)
        return int(evictable_blocks(blocks))

    def needed(*args: Any, **kwargs: Any) -> int:
        revived.clear()
        blocks: int = blocks_to_allocate(*args, **kwargs)
        if blocks < IMPOSSIBLE:
            blocks = pages.admit(group, blocks - len(revived), revived)
        return blocks

    manager._get_num_evictable_blocks = evictable
    return needed


def _counted_in_pages(coordinator: Any, pool: PageBlocks, views: Sequence[GroupBlocks]) -> Any:
    """The coordinator's ``get_num_blocks_to_allocate`` that tells pages."""
    blocks_to_allocate = coordinator.get_num_blocks_to_allocate
    managers, pages = coordinator.single_type_managers, pool.pages
    counting = [
        _counting_pages(manager, view) for manager, view in zip(managers, views, strict=True)
    ]

    def pages_to_allocate(**asked: Any) -> int:
        """See ``PagePool.note_scattered`` for what else is done."""
        request_id = asked["request_id"]
        if pages.is_closed and not any(one.req_to_blocks.get(request_id) for one in managers):
            return IMPOSSIBLE
        if not blocks_to_allocate(**asked) and not any(pages.promised):
            return 0  # Most requests in most steps.
        for manager, needed in zip(managers, counting, strict=True):
            manager.get_num_blocks_to_allocate = needed
        try:
            needed_pages = int(blocks_to_allocate(**asked))
        finally:
            for manager in managers:
                del manager.get_num_blocks_to_allocate
        if pages.free_pages < needed_pages < IMPOSSIBLE and _is_alone(managers, pool, request_id):
            pages.note_scattered()
        return needed_pages

    return pages_to_allocate


def share_pages(manager: Any) -> None:
    """Give a ``KVCacheManager``'s groups pages to share, where its groups say how.

    Args:
        manager: as vLLM has made it; changed, where a page is more than a block.
    """
    coordinator = manager.coordinator
    shapes = page_shapes_of(coordinator.kv_cache_config)
    if are_blocks(shapes):
        return
    pool = PageBlocks(coordinator.block_pool, shapes)
    coordinator.block_pool = manager.block_pool = pool
    # vLLM 0.30.0 asks the managers' pools, each of which it takes for another one.
    coordinator.reset_prefix_cache = pool.reset_prefix_cache
    views = [GroupBlocks(pool, group) for group in range(len(shapes))]
    for single, view in zip(coordinator.single_type_managers, views, strict=True):
        _serve(single, view)
    if hasattr(manager, "take_kv_cache_block_copies"):  # of vLLM 0.30
        manager.take_kv_cache_block_copies = functools.partial(_named_copies, coordinator)
    coordinator.get_num_blocks_to_allocate = _counted_in_pages(coordinator, pool, views)


def _serve(manager: Any, view: GroupBlocks) -> None:
    """Let one group's manager take its blocks from the pool."""
    manager.block_pool, manager._null_block = view, view.null_block
    manager.take_new_block_ids = functools.partial(
        _named_ids, manager.take_new_block_ids, view.group
    )


def _named_ids(take: Callable[[], list[int]], group: int) -> list[int]:
    return [named(group, block_id) for block_id in take()]


def _named_copies(coordinator: Any) -> tuple[list[tuple[int, int]], list[Any]]:
    """Source and destination of blocks to copy, as workers take them, and blocks held for it."""
    copies, held = [], []
    for group, single in enumerate(coordinator.single_type_managers):
        for source, target in single.take_pending_cow_copies():
            copies.append((named(group, source.block_id), named(group, target.block_id)))
            held += [source, target]
    return copies, held


def _is_alone(managers: Sequence[Any], pool: PageBlocks, request_id: str) -> bool:
    """Whether no other request has pages, nor blocks that are still to be freed."""
    pages = set()
    for manager in managers:
        for request, blocks in manager.req_to_blocks.items():
            for block in blocks:
                if block.is_null:
                    continue
                if request != request_id:
                    return False
                pages.add(block.page)
    return len(pages) == pool.pages.used_pages
