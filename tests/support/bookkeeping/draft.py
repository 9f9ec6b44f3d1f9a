# SPDX-License-Identifier: Apache-2.0
"""A draft whose layers write and read cells; our drafting room plans what and where.

Positions, lengths, slots and metadata come from the plan and the needs that engines use. The draft
itself draws its tokens.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from mkv_ascend.drafting.draft import HiddenStates, TargetOutput
from mkv_ascend.drafting.mask_tokens_strategy import MaskTokensStrategy
from mkv_ascend.drafting.needs import Needs
from mkv_ascend.drafting.plan import DraftPlan, Sizes
from mkv_ascend.drafting.proposal import Proposal
from mkv_ascend.drafting.strategy import AttentionStrategy, Planner
from tests.support.bookkeeping.cells import BookkeepingError, Cells, Prefixes
from tests.support.bookkeeping.plans import DRAFT
from tests.support.fake_draft import Attention, FakeBuilder, FakeDraft

VOCABULARY = 3
"""Few, so that prefixes are shared and drafts are right now and then."""
MASK = VOCABULARY


@dataclass
class Drafted:
    """A request in a proposal: its true tokens, the sampled one last, and those drafted since."""

    name: str
    tokens: list[int]
    drafted: list[int]


class CellDraft(FakeDraft):
    """One layer in each KV group of the draft.

    Args:
        groups: the KV groups of its layers.
        windows: for each of them the window, or None.
    """

    def __init__(
        self,
        cells: Cells,
        prefixes: Prefixes,
        groups: Sequence[int],
        windows: Sequence[int | None],
        method: str,
        k: int,
        max_length: int,
    ) -> None:
        shift, self.masks = method == "eagle3", k if method == "dflash" else 0
        sizes = [cells.block_sizes[group] for group in groups]
        super().__init__([FakeBuilder(True, False) for _ in groups], 1, sizes, shift)
        self.cells, self.prefixes = cells, prefixes
        self.kv_groups, self.windows = tuple(groups), tuple(windows)
        self.shift, self.max_length = shift, max_length
        self.random = random.Random(0)
        self.batch: list[Drafted] = []
        self.owners: list[int] = []

    # What the drafting room calls.

    def forward(self, rows: int, positions: torch.Tensor | None = None) -> HiddenStates:
        assert self.metadata is not None
        later = positions is not None
        at = (self.buffers.positions[:rows] if positions is None else positions).tolist()
        for layer in range(len(self.kv_groups)):
            built: Any = self.metadata[f"layers.{layer}"]
            spans = self._spans(built, later)
            for write in (True, False):
                for request, (first, last) in enumerate(spans):
                    self._run(layer, built, request, at, range(first, last + 1), write)
        state = torch.arange(rows)
        return HiddenStates(state, state)

    def sample(self, states: Any, rows: Any, out: torch.Tensor | None = None) -> torch.Tensor:
        asked = torch.arange(states.shape[0])[rows].tolist()
        drafted = [self.random.randrange(VOCABULARY) for _ in asked]
        each = len(asked) // len(self.batch)
        for index, request in enumerate(self.batch):
            request.drafted += drafted[index * each : (index + 1) * each]
        made = torch.tensor(drafted)
        return made if out is None else out.copy_(made)

    def feed_back(self, tokens: Any, hidden: Any, rows: Any) -> None:
        self.buffers.token_ids[: len(tokens)] = tokens

    def write_context(self, states: Any, positions: Any, slots: Any) -> None:
        """Keys that mask tokens attend to, from the target's rows that were not rejected."""
        for layer, of_group in enumerate(slots):
            for slot, position, owner in zip(
                of_group.tolist(), positions.tolist(), self.owners, strict=False
            ):
                if slot >= 0:
                    request = self.batch[owner]
                    numbers = self.prefixes.of(request.tokens)
                    self._write(layer, request, slot, numbers[position])

    # The judge.

    def _spans(self, built: Attention, later: bool) -> list[tuple[int, int]]:
        """Of each request the first row and the last that counts; rejected rows come behind."""
        starts = built.starts.tolist()
        if later or not built.causal:
            return [(start, end - 1) for start, end in itertools.pairwise(starts)]
        sampled = self.buffers.sample_rows[: len(self.batch)].tolist()
        for request, (row, end) in enumerate(zip(sampled, starts[1:], strict=False)):
            if not starts[request] <= row < end:
                raise BookkeepingError(f"row {row} is sampled, of {starts} rows")
        return list(zip(starts, sampled, strict=False))

    def _run(
        self,
        layer: int,
        built: Attention,
        index: int,
        positions: list[int],
        rows: range,
        write: bool,
    ) -> None:
        request, window = self.batch[index], self.windows[layer]
        numbers = self._numbers(request)
        starts, slots = built.starts.tolist(), built.slots.tolist()
        seen = int(built.lengths[index])
        for row in rows:
            position = positions[row]
            if position == 0 and slots[row] < 0:
                continue  # Past the longest sequence, where nothing is written.
            if position >= len(numbers):
                raise BookkeepingError(
                    f"{request.name}: a row at position {position}, of {len(numbers)} tokens"
                )
            if write:
                if slots[row] >= 0:
                    self._write(layer, request, slots[row], numbers[position])
                continue
            keys = seen - (starts[index + 1] - 1 - row) if built.causal else seen
            exist = position + 1 if built.causal else len(numbers)
            if keys != min(exist, self.max_length):
                raise BookkeepingError(
                    f"{request.name}: a row at position {position} sees {keys} keys of {exist}"
                )
            lowest = 0 if window is None else max(0, position - window + 1)
            # Rows of one path: all keys but a row's own were looked at for the row before.
            if row > rows.start:
                lowest = max(lowest, position)
            self._read(layer, request, built.table[index].tolist(), range(lowest, keys), numbers)

    def _write(self, layer: int, request: Drafted, slot: int, number: int) -> None:
        self.cells.write(request.name, self.kv_groups[layer], DRAFT, slot, number)

    def _read(
        self, layer: int, request: Drafted, table: list[int], places: range, numbers: list[int]
    ) -> None:
        size = self.groups.block_sizes[layer]
        for place in places:
            slot = table[place // size] * size + place % size
            self.cells.require(
                request.name, self.kv_groups[layer], DRAFT, slot, numbers[place], place
            )

    def _numbers(self, request: Drafted) -> list[int]:
        """The prefix of the key of each position; a head's key is made one token ahead."""
        if self.masks:
            # Keys of the draft window are others than those of the context.
            *context, last = request.tokens
            return self.prefixes.of([*context, MASK + 1 + last, *[MASK] * self.masks])
        numbers = self.prefixes.of([*request.tokens, *request.drafted])
        return numbers[1:] if self.shift else numbers


@dataclass
class Drafting:
    """A proposal over the worker's tables."""

    draft: CellDraft
    proposal: Proposal
    k: int

    def propose(
        self, batch: list[Drafted], target: TargetOutput, seed: int, owners: list[int]
    ) -> list[list[int]]:
        """K tokens for each request; ``owners``: the request of each row of the target."""
        self.draft.batch, self.draft.owners = batch, owners
        self.draft.random.seed(seed)
        drafted = self.proposal.propose(target)
        if drafted.shape != (len(batch), self.k):
            raise BookkeepingError(f"{tuple(drafted.shape)} tokens for {len(batch)} requests")
        return [[int(token) for token in row] for row in drafted.tolist()]


def make_drafting(
    draft: CellDraft, tables: Sequence[torch.Tensor], method: str, k: int, requests: int
) -> Drafting:
    """Args:
    tables: the worker's, of the draft's KV groups.
    """
    masks = method == "dflash"
    sizes = Sizes(
        later_passes=k + 1 if masks else k - 1,
        max_requests=requests,
        max_tokens=draft.buffers.token_ids.numel(),
        max_model_len=draft.max_length,
        shift=method != "draft_model",
    )
    if masks:
        context = torch.zeros(sizes.max_tokens, 1, dtype=torch.int64)
        draft.buffers = type(draft.buffers)(**{**vars(draft.buffers), "hidden_states": context})
    plan = DraftPlan(sizes, tables, draft.groups.block_sizes)
    needs = Needs(draft.groups, draft.builders)
    fake: Any = draft  # Its builders are a list of fake ones, not a sequence of any.
    strategy: Any
    if masks:
        strategy = MaskTokensStrategy(fake, plan, needs, MASK)
    else:
        strategy = AttentionStrategy(Planner(fake, plan, needs))
    return Drafting(draft, Proposal(fake, strategy, plan, needs), k)
