# SPDX-License-Identifier: Apache-2.0
"""A worker without a model: it does what a scheduler says, and judges every slot of it."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import torch

from mkv_ascend.drafting.draft import TargetOutput
from mkv_ascend.layout.kind import Role
from tests.support.bookkeeping.cells import BookkeepingError, Cells, Prefixes
from tests.support.bookkeeping.draft import (
    VOCABULARY,
    CellDraft,
    Drafted,
    Drafting,
    make_drafting,
)
from tests.support.bookkeeping.plans import (
    MAX_LENGTH,
    MOST_REQUESTS,
    TARGET,
    Core,
)
from tests.support.bookkeeping.recurrent import StateGroups

PLACEHOLDER = -1


@dataclass
class Held:
    """A request in the worker. ``computed``: how many of its tokens have keys; the rest follow."""

    name: str
    tokens: list[int]
    computed: int
    blocks: list[list[int]]
    drafts: list[int] = field(default_factory=list)
    accepted: int = 1
    """Tokens of its last row that were accepted, from which its states go on."""


@dataclass
class Row:
    """What the target computes of a request in a step."""

    request: Held
    tokens: list[int]
    drafts: int
    samples: bool
    placeholders: bool
    """Whether nobody made the drafts."""
    rejected: int = 0


@dataclass
class Done:
    """A step's outcome, on its way to the scheduler."""

    sampled: dict[str, list[int]]
    rejected: dict[str, int]


class Worker:
    """Runs steps over the planned groups of a core."""

    def __init__(self, core: Core) -> None:
        self.core = core
        groups = core.caches.kv_cache_groups
        sizes = [min(group.kv_cache_spec.block_size, MAX_LENGTH) for group in groups]
        self.cells, self.prefixes = Cells(sizes), Prefixes()
        self.states = StateGroups(core, self.cells)
        self.target_groups = [
            group for group in core.groups_of(Role.TARGET) if group not in self.states.groups
        ]
        self.held: dict[str, Held] = {}
        longest = MAX_LENGTH + core.pair.k + 1
        self.tables = [
            torch.zeros(MOST_REQUESTS, -(-longest // size) + core.pair.k, dtype=torch.int32)
            for size in sizes
        ]
        self.drafting = self._drafting()

    def _drafting(self) -> Drafting:
        pair, groups = self.core.pair, self.core.groups_of(Role.DRAFT)
        windows = [self.window(group) for group in groups]
        draft = CellDraft(
            self.cells, self.prefixes, groups, windows, pair.method, pair.k, MAX_LENGTH
        )
        tables = [self.tables[group] for group in groups]
        return make_drafting(draft, tables, pair.method, pair.k, MOST_REQUESTS)

    def window(self, group: int) -> int | None:
        """The window of a group's layers; None if they see all tokens."""
        found: int | None = getattr(
            self.core.caches.kv_cache_groups[group].kv_cache_spec, "sliding_window", None
        )
        return found

    def step(self, output: Any, behind: dict[str, int], seed: int) -> Done:
        """Run a step.

        Args:
            output: the scheduler's.
            behind: tokens that were rejected in steps of which the scheduler did not know then.
        """
        rows = self._rows(output, behind)
        if not rows:
            return Done({}, {})
        for index, row in enumerate(rows):
            for table, blocks in zip(self.tables, row.request.blocks, strict=True):
                # Behind its blocks are those of the requests that had the row before.
                table[index, : len(blocks)] = torch.tensor(blocks, dtype=torch.int32)
        self._run_target(rows)
        drawn = random.Random(seed)
        done = Done({}, {})
        starts = [(row.request.computed, len(row.tokens)) for row in rows]
        for row in rows:
            sampled = self._accept(row, drawn)
            done.sampled[row.request.name] = sampled
            done.rejected[row.request.name] = row.rejected
        self._draft(rows, starts, seed)
        return done

    # What the scheduler says.

    def _rows(self, output: Any, behind: dict[str, int]) -> list[Row]:
        for name in (*output.finished_req_ids, *(output.preempted_req_ids or ())):
            self.held.pop(name, None)
        for new in output.scheduled_new_reqs:
            self._begin(new.req_id, new.block_ids, new.num_computed_tokens)
        cached = output.scheduled_cached_reqs
        for name, blocks, computed in zip(
            cached.req_ids, cached.new_block_ids, cached.num_computed_tokens, strict=True
        ):
            if name in cached.resumed_req_ids:
                self._begin(name, blocks, computed)
                continue
            request = self.held[name]
            if computed != request.computed + behind.get(name, 0):
                raise BookkeepingError(
                    f"{name}: the scheduler counts {computed} tokens, {behind.get(name, 0)} of "
                    f"them rejected since; computed are {request.computed}"
                )
            for own, more in zip(request.blocks, blocks or [[]] * len(request.blocks), strict=True):
                own += more
        return [self._row(name, count, output) for name, count in self._in_order(output)]

    def _in_order(self, output: Any) -> list[tuple[str, int]]:
        scheduled: dict[str, int] = output.num_scheduled_tokens
        return sorted(scheduled.items(), key=lambda pair: (pair[1] > 1 + self.core.pair.k, pair[0]))

    def _begin(self, name: str, blocks: Any, computed: int) -> None:
        tokens = list(self.core.scheduler.requests[name].all_token_ids)
        self.held[name] = Held(name, tokens, computed, [list(one) for one in blocks])

    def _row(self, name: str, count: int, output: Any) -> Row:
        request = self.held[name]
        drafts = len(output.scheduled_spec_decode_tokens.get(name, ()))
        # vLLM 0.30.0 fills a request that begins with its last token up to a verification.
        begins = not request.drafts and drafts == self.core.pair.k
        drafted = [PLACEHOLDER] * drafts if begins else request.drafts[:drafts]
        known = [*request.tokens, *drafted]
        tokens = known[request.computed : request.computed + count]
        if len(tokens) != count or (drafts and request.computed + count != len(known)):
            raise BookkeepingError(
                f"{name}: {count} tokens are scheduled from {request.computed} on, of "
                f"{len(request.tokens)} and {drafts} drafted ones"
            )
        samples = request.computed + count >= len(request.tokens)
        return Row(request, tokens, drafts, samples, begins)

    # The target.

    def _run_target(self, rows: list[Row]) -> None:
        paths = []
        for index, row in enumerate(rows):
            start = row.request.computed
            numbers = self.prefixes.of([*row.request.tokens[:start], *row.tokens])
            paths.append(numbers)
            self.states.run(row.request, self.tables, index, numbers, len(row.tokens), row.drafts)
            for group in self.target_groups:
                for position in range(start, start + len(row.tokens)):
                    slot = self._slot(index, group, position)
                    self.cells.write(row.request.name, group, TARGET, slot, numbers[position])
        for index, row in enumerate(rows):
            for group in self.target_groups:
                self._read(index, row, group, paths[index])

    def _read(self, index: int, row: Row, group: int, numbers: list[int]) -> None:
        window = self.window(group)
        first = 0 if window is None else max(0, row.request.computed - window + 1)
        for position in range(first, row.request.computed + len(row.tokens)):
            slot = self._slot(index, group, position)
            self.cells.require(row.request.name, group, TARGET, slot, numbers[position], position)

    def _slot(self, index: int, group: int, position: int) -> int:
        size = self.cells.block_sizes[group]
        return int(self.tables[group][index, position // size]) * size + position % size

    def _accept(self, row: Row, drawn: random.Random) -> list[int]:
        """Sample, and keep as many drafts as the target would have said itself."""
        request = row.request
        if not row.samples:
            request.computed += len(row.tokens)
            request.accepted = 1
            return []
        drafts = request.drafts[: row.drafts]
        count = 0 if row.placeholders else drawn.randint(0, row.drafts)
        token = drawn.randrange(VOCABULARY)
        if count < len(drafts) and token == drafts[count]:
            token = (token + 1) % VOCABULARY
        row.rejected = row.drafts - count
        request.computed += len(row.tokens) - row.rejected
        request.accepted = 1 + count
        request.tokens += [*drafts[:count], token]
        return [*drafts[:count], token]

    # The draft.

    def _draft(self, rows: list[Row], begins: list[tuple[int, int]], seed: int) -> None:
        lengths = [start + count for start, count in begins]
        positions = [at for start, count in begins for at in range(start, start + count)]
        starts = [0]
        for _, count in begins:
            starts.append(starts[-1] + count)
        batch = [
            Drafted(row.request.name, row.request.tokens[: row.request.computed + 1], [])
            for row in rows
        ]
        rejected = [row.rejected for row in rows]
        on_host = torch.tensor(starts, dtype=torch.int32)
        keys = torch.tensor(lengths, dtype=torch.int32)
        target = TargetOutput(
            torch.tensor([token for row in rows for token in row.tokens], dtype=torch.int32),
            torch.tensor(positions),
            torch.tensor([one.tokens[-1] for one in batch]),
            torch.zeros(starts[-1], 1, dtype=torch.int64),
            torch.tensor(rejected, dtype=torch.int32) if any(rejected) else None,
            on_host.clone(),
            on_host,
            keys,
            keys.clone(),
            max(count for _, count in begins),
        )
        owners = [index for index, (_, count) in enumerate(begins) for _ in range(count)]
        drafted = self.drafting.propose(batch, target, seed, owners)
        for row, tokens in zip(rows, drafted, strict=True):
            row.request.drafts = tokens if row.samples else []
