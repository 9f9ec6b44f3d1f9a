# SPDX-License-Identifier: Apache-2.0
"""Mistakes in the bookkeeping, planted to see that they are noticed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.core.single_type_kv_cache_manager import SlidingWindowManager
from vllm.v1.engine import core

from mkv_ascend.adapters.patching import replaced
from mkv_ascend.drafting.needs import Needs
from mkv_ascend.drafting.plan import DraftPlan
from tests.support.bookkeeping.plans import BLOCK
from tests.support.bookkeeping.worker import Worker


@dataclass(frozen=True)
class Fault:
    """``plant``: makes the mistake while the block runs; ``pair``: models that meet it."""

    name: str
    pair: str
    plant: Callable[[], AbstractContextManager[None]]


def _windows_end_a_block_early() -> AbstractContextManager[None]:
    original = SlidingWindowManager.get_num_skipped_tokens

    def skipped(manager: Any, *tokens: Any) -> int:
        return int(original(manager, *tokens)) + BLOCK

    return replaced(SlidingWindowManager, "get_num_skipped_tokens", skipped)


def _blocks_are_freed_while_others_have_them() -> AbstractContextManager[None]:
    original = BlockPool.free_blocks

    def free(pool: Any, blocks: Any, *arguments: Any) -> None:
        freed = list(blocks)
        original(pool, freed, *arguments)
        for block in freed:
            if block.ref_cnt and not block.is_null:
                pool.free_block_queue.append(block)

    return replaced(BlockPool, "free_blocks", free)


def _a_resumed_request_keeps_its_old_blocks() -> AbstractContextManager[None]:
    original = Worker._begin
    kept: dict[tuple[int, str], Any] = {}

    def begin(worker: Any, name: str, blocks: Any, computed: int) -> None:
        original(worker, name, kept.get((id(worker), name), blocks), computed)
        kept[id(worker), name] = worker.held[name].blocks

    return replaced(Worker, "_begin", begin)


def _rejected_tokens_count() -> AbstractContextManager[None]:
    original = DraftPlan.expand

    def expand(plan: Any, target: Any, *arguments: Any) -> int:
        return original(plan, replace(target, num_rejected=None), *arguments)

    return replaced(DraftPlan, "expand", expand)


def _slots_of_drafts_are_not_allocated() -> AbstractContextManager[None]:
    original = Scheduler.__init__

    def init(scheduler: Any, *args: Any, **kwargs: Any) -> None:
        original(scheduler, *args, **kwargs)
        scheduler.num_lookahead_tokens = 0

    return replaced(Scheduler, "__init__", init)


def _a_follower_has_the_leaders_table() -> AbstractContextManager[None]:
    original = Needs.for_group

    def for_group(needs: Any, need: Any, built: Any, slots: Any, tables: Any, _: int) -> object:
        return original(needs, need, built, slots, tables, need.groups[0])

    return replaced(Needs, "for_group", for_group)


@contextmanager
def _the_last_block_of_a_hit_is_anothers() -> Iterator[None]:
    """With half of our patch: the block is not dropped, and its hash does not tell the token."""
    hasher: Any = core.get_request_block_hasher
    with replaced(core, "get_request_block_hasher", hasher.__wrapped__):
        yield


FAULTS = (
    Fault("windows end a block early", "dense and windows", _windows_end_a_block_early),
    Fault("windows of a draft end early", "mla, draft of windows", _windows_end_a_block_early),
    Fault("freed while others have it", "one group", _blocks_are_freed_while_others_have_them),
    Fault("old blocks after resumption", "one group", _a_resumed_request_keeps_its_old_blocks),
    Fault("rejected tokens count", "one group", _rejected_tokens_count),
    Fault("rejected tokens of a head", "head", _rejected_tokens_count),
    Fault("no slots for drafts", "states, dense draft", _slots_of_drafts_are_not_allocated),
    Fault("another group's table", "draft in three groups", _a_follower_has_the_leaders_table),
    Fault("last block of a hit", "head of windows", _the_last_block_of_a_hit_is_anothers),
)
