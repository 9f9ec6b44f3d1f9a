# SPDX-License-Identifier: Apache-2.0
"""Force the preemption of a request, whatever the size of the pool and the number of KV groups.

The size of pool in which requests of given lengths do not fit depends on the KV groups of each pair
of models. So the pool is not made small. Once all requests decode, all free blocks are held back,
as if other requests had them. The next request that crosses into a new block
then finds none, and vLLM preempts. From then on the blocks are free again.
"""

from __future__ import annotations

from typing import Any


def all_free_blocks(pool: Any) -> list[Any]:
    """Every free block of vLLM's pool, taken; also those in pages that groups share."""
    if (pages := getattr(pool, "pages", None)) is None:
        return list(pool.get_new_blocks(pool.get_num_free_blocks()))
    groups = range(len(pages.shapes))
    return [block for group in groups for block in pool.take(group, pages.room(group))]


class PreemptionForcer:
    """Holds back the free blocks of a scheduler of vLLM until it has preempted a request.

    Attributes:
        contexts: token ids of each preempted request at that moment: what was accepted so far.
    """

    def __init__(self, scheduler: Any) -> None:
        self.contexts: list[list[int]] = []
        self._scheduler = scheduler
        self._pool = scheduler.kv_cache_manager.block_pool
        self._held: list[Any] = []
        self._schedule = scheduler.schedule
        self._preempt = scheduler._preempt_request
        scheduler.schedule = self._schedule_without_free_blocks
        scheduler._preempt_request = self._preempt_and_give_back

    def _schedule_without_free_blocks(self, *arguments: Any, **named: Any) -> Any:
        if not self.contexts and self._all_decode():
            # At each step anew: blocks that fell out of a window came free in the meantime.
            self._held += all_free_blocks(self._pool)
        elif not self._scheduler.running:
            self._give_back()
        return self._schedule(*arguments, **named)

    def _all_decode(self) -> bool:
        scheduler = self._scheduler
        return bool(scheduler.running) and not (
            scheduler.waiting
            or scheduler.skipped_waiting
            or any(request.is_prefill_chunk for request in scheduler.running)
        )

    def _preempt_and_give_back(self, request: Any, *arguments: Any, **named: Any) -> None:
        self.contexts.append(list(request.all_token_ids))
        self._preempt(request, *arguments, **named)
        self._give_back()

    def _give_back(self) -> None:
        if self._held:
            self._pool.free_blocks(self._held)
            self._held = []
