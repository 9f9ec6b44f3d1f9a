# SPDX-License-Identifier: Apache-2.0
"""Requests in any order through vLLM's scheduler, our plan and a draft, one rule at a time."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from vllm.sampling_params import SamplingParams
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

from tests.support.bookkeeping.cells import NULL_BLOCK, BookkeepingError, Owned
from tests.support.bookkeeping.draft import VOCABULARY
from tests.support.bookkeeping.plans import (
    MAX_LENGTH,
    MOST_REQUESTS,
    Core,
    Pair,
    config_of,
    make_core,
    patched,
)
from tests.support.bookkeeping.worker import Done, Worker

SEEDS = st.integers(0, 2**32 - 1)
STEMS = [[(stem + place * (1 + stem)) % VOCABULARY for place in range(32)] for stem in range(2)]
"""What prompts begin with, so that requests share prefixes."""
MOST_STEPS = 1600
"""More than all requests of a run take."""


class Engine:
    """A core and its worker; with asynchronous scheduling one step's outcome is on its way."""

    def __init__(self, pair: Pair, asynchronous: bool, spare_blocks: int) -> None:
        self.core: Core = make_core(pair, asynchronous, spare_blocks)
        self.asynchronous = asynchronous
        self.worker = Worker(self.core)
        self.on_the_way: deque[tuple[Any, Done]] = deque()
        self.free_at_start = self.core.pool.get_num_free_blocks()
        self.seen: Counter[str] = Counter()
        self.is_sound = True
        """False from a failure on: nothing is to be made of what follows."""

    @property
    def scheduler(self) -> Any:
        return self.core.scheduler

    def admit(self, prompt: list[int], max_tokens: int) -> None:
        self.seen["admitted"] += 1
        self.scheduler.add_request(
            Request(
                request_id=f"request {self.seen['admitted']}",
                prompt_token_ids=prompt,
                sampling_params=SamplingParams(max_tokens=max_tokens, ignore_eos=True),
                pooling_params=None,
                block_hasher=self.core.block_hasher if self.core.pair.caching else None,
            )
        )

    def abort(self, which: int) -> None:
        names = sorted(self.scheduler.requests)
        if names:
            self.seen["aborted"] += 1
            name = names[which % len(names)]
            self.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)

    def step(self, seed: int) -> None:
        """Schedule and run a step; the scheduler learns of it now, or after the next one."""
        self.is_sound = False
        output = self.scheduler.schedule()
        self.worker.cells.begin_step(self.owned())
        behind: Counter[str] = Counter()
        for _, done in self.on_the_way:
            behind.update(done.rejected)
        done = self.worker.step(output, behind, seed)
        self._count(output, done)
        self.on_the_way.append((output, done))
        while len(self.on_the_way) > self.asynchronous or (
            self.on_the_way and not output.num_scheduled_tokens
        ):
            self._tell(*self.on_the_way.popleft())
        self.is_sound = True

    def _tell(self, output: Any, done: Done) -> None:
        if not output.num_scheduled_tokens:
            return
        names = list(done.sampled)
        places = {name: index for index, name in enumerate(names)}
        result = ModelRunnerOutput(names, places, [done.sampled[name] for name in names])
        self.scheduler.update_from_output(output, result)
        if not self.asynchronous:
            drafts = [list(self.worker.held[name].drafts) for name in names]
            self.scheduler.update_draft_token_ids(DraftTokenIds(names, drafts))

    def _count(self, output: Any, done: Done) -> None:
        self.seen["steps"] += 1
        self.seen["preempted"] += len(output.preempted_req_ids or ())
        self.seen["rejected"] += sum(done.rejected.values())
        self.seen["verified"] += len(output.scheduled_spec_decode_tokens)
        self.seen["hits"] += sum(new.num_computed_tokens > 0 for new in output.scheduled_new_reqs)
        self.seen["chunks"] += sum(not sampled for sampled in done.sampled.values())

    # What holds in every step.

    def owned(self) -> Owned:
        """The blocks of all requests, no block of which is in two places."""
        manager = self.scheduler.kv_cache_manager
        blocks = {name: manager.get_block_ids(name) for name in self.scheduler.requests}
        return Owned(blocks, self.core.page_of)

    def check(self) -> None:
        """Blocks that are free belong to nobody, and blocks of requests are not free."""
        self.is_sound = False
        owned = self.owned()
        pool = self.core.pool
        if self.core.pair.shapes:
            self._check_pages(owned)
            self.is_sound = True
            return
        owners: dict[int, set[str]] = {}
        for (_, number), names in owned.owners.items():
            owners.setdefault(number, set()).update(names)
        free = {block.block_id for block in pool.free_block_queue.get_all_free_blocks()}
        for block in pool.blocks:
            number = block.block_id
            if number == NULL_BLOCK:
                continue
            users = len(owners.get(number, ()))
            if block.ref_cnt != users or (number in free) != (users == 0):
                raise BookkeepingError(
                    f"block {number} is counted {block.ref_cnt} times and "
                    f"{'free' if number in free else 'not free'}; {users} requests have it"
                )
        self.is_sound = True

    def _check_pages(self, owned: Owned) -> None:
        """As ``check``, where blocks lie in pages."""
        pages = self.core.pool.pages
        seen = 0
        for block in pages.blocks():
            users = len(owned.owners.get((block.page.group, block.block_id), ()))
            seen += users > 0
            is_free = block.page is not None and block.is_free
            if block.ref_cnt != users or is_free != (users == 0):
                raise BookkeepingError(
                    f"block {block.block_id} of group {block.page.group} is counted "
                    f"{block.ref_cnt} times; {users} requests have it"
                )
        if seen != len(owned.owners) or pages.used_pages != len(owned.groups):
            raise BookkeepingError(
                f"{pages.used_pages} pages are used, {len(owned.groups)} are owned, with {seen} of "
                f"{len(owned.owners)} blocks"
            )

    def drain(self, seed: int) -> None:
        """Go on until no request is left; then every block is free again."""
        for number in range(MOST_STEPS):
            if not self.scheduler.requests and not self.on_the_way:
                break
            self.step(seed + number)
            self.check()
        if self.scheduler.requests:
            raise BookkeepingError(f"{sorted(self.scheduler.requests)} are never finished")
        if (free := self.core.pool.get_num_free_blocks()) != self.free_at_start:
            raise BookkeepingError(
                f"{free} blocks are free, {self.free_at_start} were at the start"
            )


class Bookkeeping(RuleBasedStateMachine):
    """Subclasses name the pair of models.

    ``fault``: plants a mistake. ``seen``: how often what happened, over all runs.
    """

    pair: Pair
    fault: Callable[[], AbstractContextManager[None]]
    seen: Counter[str]

    @initialize(asynchronous=st.booleans(), spare=st.integers(0, 12))
    def start(self, asynchronous: bool, spare: int) -> None:
        self.stack = ExitStack()
        self.stack.enter_context(patched(config_of(self.pair, asynchronous, None)))
        self.stack.enter_context(type(self).fault())
        self.engine = Engine(self.pair, asynchronous, spare)

    @rule(
        stem=st.integers(0, len(STEMS) - 1),
        shared=st.integers(0, 28),
        own=st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=8),
        max_tokens=st.integers(1, 24),
    )
    def admit(self, stem: int, shared: int, own: list[int], max_tokens: int) -> None:
        prompt = [*STEMS[stem][:shared], *own][: MAX_LENGTH - 2]
        self.engine.admit(prompt, max_tokens)

    @rule(seed=SEEDS)
    def step(self, seed: int) -> None:
        self.engine.step(seed)

    @rule(seed=SEEDS, aborted=st.lists(st.integers(0, 9), min_size=1, max_size=5))
    def steps(self, seed: int, aborted: list[int]) -> None:
        """Steps in a row, and before each an abortion or none."""
        for number, which in enumerate(aborted):
            if which < MOST_REQUESTS:
                self.engine.abort(which)
            self.engine.step(seed + number)
            self.engine.check()

    @invariant()
    def blocks_are_counted(self) -> None:
        if hasattr(self, "engine"):
            self.engine.check()

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        try:
            if self.engine.is_sound:
                self.engine.drain(len(self.engine.seen))
        finally:
            type(self).seen.update(self.engine.seen)
            self.stack.close()


def machine(
    pair: Pair, fault: Callable[[], AbstractContextManager[None]] = nullcontext
) -> type[Bookkeeping]:
    """The machine of one pair."""
    members = {"pair": pair, "fault": staticmethod(fault), "seen": Counter()}
    return type("Bookkeeping", (Bookkeeping,), members)
