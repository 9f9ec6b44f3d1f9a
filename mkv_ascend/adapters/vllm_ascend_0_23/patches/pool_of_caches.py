# SPDX-License-Identifier: Apache-2.0
"""Sleep mode takes the memory of caches away, and of nothing else that is made with them."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from mkv_ascend.adapters.patching import patch

OF_CACHES = "kv_cache"
"""vllm-ascend's tag of memory whose content sleep mode forgets."""
Pool = Callable[[], AbstractContextManager[Any]]


class PoolOfCaches:
    """A pool that vllm-ascend opens for a block, and that is open only where caches are made."""

    def __init__(self) -> None:
        self._pool: Pool | None = None

    @contextlib.contextmanager
    def kept_closed(self, pool: Pool) -> Iterator[None]:
        """Open nothing yet; ``opened`` does so in the block."""
        self._pool = pool
        try:
            yield
        finally:
            self._pool = None

    def opened(self) -> AbstractContextManager[Any]:
        """What is allocated in the block comes from the pool, if one is kept closed."""
        return contextlib.nullcontext() if self._pool is None else self._pool()


POOL = PoolOfCaches()


@patch(
    name="sleep mode forgets caches alone",
    target="vllm_ascend.device_allocator.camem:CaMemAllocator.use_memory_pool",
    reads=("vllm_ascend.worker.worker:NPUWorker.initialize_from_config",),
)
def keep_the_pool_closed(
    original: Callable[..., AbstractContextManager[Any]], allocator: Any, tag: str | None = None
) -> AbstractContextManager[Any]:
    """As vllm-ascend's; the pool of caches opens where they are allocated."""
    pool = functools.partial(original, allocator, tag)
    return POOL.kept_closed(pool) if tag == OF_CACHES else pool()
