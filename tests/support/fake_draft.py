# SPDX-License-Identifier: Apache-2.0
"""A draft, its metadata builders and a graph capturer in plain torch, all on integers.

A layer keeps one number for each slot. A row's state is a sum over the keys it may see, each times
its place; the token drafted is that modulo the vocabulary. So every wrong key, place, length, slot
or block table gives another token.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from mkv_ascend.drafting.draft import (
    DraftBuffers,
    DraftGroup,
    DraftGroups,
    HiddenStates,
    HostLengths,
    Metadata,
    PassBatch,
)
from mkv_ascend.drafting.proposal import Passes

VOCABULARY, PRIME = 997, 1_000_003
STATE = 10_007
"""Hidden states are numbers below this."""


@dataclass
class Attention:
    """Metadata of one layer; ``lengths`` are as an operator takes them, wherever they are."""

    slots: torch.Tensor
    table: torch.Tensor
    starts: torch.Tensor
    lengths: torch.Tensor
    causal: bool
    rotary: torch.Tensor | None
    bounds: torch.Tensor
    on_device: bool
    kept: tuple[torch.Tensor, torch.Tensor] | None = None

    def long_slots(self) -> torch.Tensor:
        """Kept, as layers of vllm-ascend 0.30.0rc2 keep them for the next layer of a pass."""
        if self.kept is None or self.kept[0] is not self.slots:
            self.kept = self.slots, self.slots.long()
        return self.kept[1]


@dataclass
class Gathered:
    """``CosSinRows``: what a rotary table holds at the positions of all passes."""

    positions: Sequence[torch.Tensor]
    rows: torch.Tensor

    def of_pass(self, index: int) -> int:
        """The first row of a pass; a later one has as many rows as any other."""
        if not index:
            return 0
        return self.positions[0].numel() + (index - 1) * self.positions[1].shape[1]

    def regather(self) -> None:
        self.rows.copy_(rotary(torch.cat([part.flatten() for part in self.positions])))


def rotary(positions: Any) -> Any:
    return (positions * 31 + 7) % 101


class FakeBuilder:
    """``Builder``; ``shares`` or runs anew each time; its layers may take cos_sin rows.

    One that shares nothing and takes lengths on the device runs in graphs.
    """

    def __init__(self, shares: bool, rotates: bool, reads_host_lengths: bool = True) -> None:
        self.shares, self.rotates = shares, rotates
        self.reads_host_lengths = reads_host_lengths
        self.builds_in_graphs = not (shares or reads_host_lengths)

    def need(self) -> tuple[bool, bool]:
        return self.rotates, self.reads_host_lengths

    def cos_sin_rows(self, first: Any, later: Any) -> Gathered | None:
        if not self.rotates:
            return None
        parts = [part for part in (first, later) if part is not None]
        return Gathered(parts, rotary(torch.cat([part.flatten() for part in parts])))

    def build(self, batch: PassBatch, slots: Any, table: Any, rows: Any) -> Attention:
        own = None
        if batch.index:
            assert batch.lengths.tolist() == (batch.positions + 1).tolist()
        if not self.shares:
            assert bool((batch.length_bounds >= batch.lengths).all())
        if self.rotates:
            first = rows.of_pass(batch.index)
            own = rows.rows[first : first + batch.rows]
        lengths = batch.host_lengths.clone() if self.reads_host_lengths else batch.lengths
        starts, bounds, on_device = (
            batch.query_start_loc,
            batch.length_bounds,
            not self.reads_host_lengths,
        )
        return Attention(slots, table, starts, lengths, batch.causal, own, bounds, on_device)

    def for_group(self, built: Any, slots: Any, table: Any) -> Attention:
        assert self.shares
        found: Attention = replace(built, slots=slots, table=table)
        return found

    def for_later_passes(self, built: Any, later: Any, rows: Any) -> list[object]:
        made: list[object] = []
        for index, positions in enumerate(later.request_positions):
            own = None
            if self.rotates:
                first = rows.of_pass(index + 1)
                own = rows.rows[first : first + len(positions)]
            lengths = built.lengths if self.reads_host_lengths else later.lengths[index]
            made.append(replace(built, rotary=own, lengths=lengths))
        return made

    def set_lengths(self, built: Any, lengths: HostLengths) -> None:
        assert self.reads_host_lengths
        assert lengths.tensor.tolist() == lengths.values
        built.lengths = lengths.tensor.clone()


class FakeDraft:
    """``Draft`` and ``ContextDraft`` of one layer in each of the KV groups.

    ``head``: whether it takes hidden states. ``recurrent``: gives what recurrent layers add to the
    states of so many rows. ``in_step``: whether later passes have as many rows as the first.
    """

    def __init__(
        self, builders: Sequence[FakeBuilder], blocks: int, block_sizes: Sequence[int], head: bool
    ) -> None:
        count, most = len(builders), 160
        self.groups = DraftGroups(
            tuple(
                DraftGroup(index, index, object, index, None, (f"layers.{index}",))
                for index in range(count)
            ),
            tuple(range(count)),
            tuple(block_sizes),
        )
        self.builders = list(builders)
        self.caches = [torch.zeros(blocks * size + 1, dtype=torch.int64) for size in block_sizes]
        integers = torch.int32
        self.buffers = DraftBuffers(
            torch.zeros(most, dtype=integers),
            torch.zeros(most, dtype=integers),
            torch.zeros(most, dtype=integers),
            hidden_states=torch.zeros(most, 1, dtype=torch.int64) if head else None,
        )
        self.head = head
        self.metadata: Metadata | None = None
        self.recurrent: Callable[[int], torch.Tensor | int] = lambda rows: 0
        self.in_step = False

    def share_rows(self, rows: int) -> tuple[int, None]:
        return rows, None

    def later_rows(self, input_rows: int, requests: int) -> int:
        return input_rows if self.in_step else requests

    def combine(self, states: torch.Tensor) -> torch.Tensor:
        return states * 3 % STATE

    def embed(self, rows: int, multimodal: object = None) -> None:
        """It takes token ids."""

    @contextlib.contextmanager
    def running(self, metadata: Metadata | None, batch: PassBatch) -> Iterator[None]:
        self.metadata = metadata
        yield
        self.metadata = None

    def use(self, metadata: Metadata | None) -> None:
        self.metadata = metadata

    def begin_later_passes(self, rows: int, requests: int) -> None:
        """Nothing depends on it."""

    def write_context(self, states: Any, positions: Any, slots: Any) -> None:
        for cache, of_group in zip(self.caches, slots, strict=True):
            cache[of_group.long()] = key(states[:, 0], positions)

    def forward(self, rows: int, positions: torch.Tensor | None = None) -> HiddenStates:
        assert self.metadata is not None
        buffers = self.buffers
        at = (buffers.positions[:rows] if positions is None else positions).long()
        tokens = buffers.token_ids[:rows].long()
        if self.head and buffers.hidden_states is not None:
            tokens = tokens + VOCABULARY * buffers.hidden_states[:rows, 0]
        state = key(tokens, at) + self.recurrent(rows)
        for layer, (cache, size) in enumerate(
            zip(self.caches, self.groups.block_sizes, strict=True)
        ):
            built: Any = self.metadata[f"layers.{layer}"]
            slots = built.long_slots()[:rows]
            # Rows that keep the pass as long as the first have no slot, nor a request.
            cache[slots] = key(tokens, at)[: len(slots)]
            state = state + (layer + 2) * attended(built, cache, size, rows)
        return HiddenStates(state % STATE, state % STATE)

    def sample(self, states: Any, rows: Any, out: torch.Tensor | None = None) -> torch.Tensor:
        drafted: torch.Tensor = states[rows] % VOCABULARY
        return drafted if out is None else out.copy_(drafted)

    def feed_back(self, tokens: Any, hidden: Any, rows: Any) -> None:
        self.buffers.token_ids[: len(tokens)] = tokens
        if self.head and self.buffers.hidden_states is not None:
            self.buffers.hidden_states[: len(tokens), 0] = hidden[rows]


def key(token: Any, position: Any) -> Any:
    """What a layer keeps of a token; ``sum_of_keys`` says it once more for one request."""
    return (token * 1009 + position * 31 + 1) % PRIME


def attended(built: Attention, cache: torch.Tensor, size: int, rows: int) -> torch.Tensor:
    """For each row the sum over its keys, int64 [rows]."""
    places = torch.arange(built.table.shape[1] * size)
    assert int(built.lengths.max()) <= len(places), "operators take no length beyond the table"
    keys = cache[built.table.long()[:, places // size] * size + places % size]
    row = torch.arange(rows)
    request = torch.bucketize(row, built.starts[1:].long(), right=True).clamp(max=len(keys) - 1)
    seen = built.lengths[request].long()
    if built.causal:
        seen = seen - (built.starts[request + 1] - 1 - row)
    weights = torch.where(places < seen[:, None], places + 1, 0)
    states = (keys[request] * weights % PRIME).sum(dim=1)
    if built.rotary is not None:
        # None for rows of no request.
        of_requests = built.rotary[:rows]
        states[: len(of_requests)] += of_requests
    return states


class Recorder(TorchDispatchMode):
    """Notes what is launched; running it again uses the same tensors and no Python of the draft."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, out))
        return out

    def run(self) -> None:
        for func, args, kwargs, out in self.calls:
            again = func(*args, **kwargs)
            if isinstance(out, torch.Tensor) and again is not out:
                out.copy_(again)


class FakeGraph:
    """``Graph``: waits for lengths if there are launches that take them."""

    def __init__(self, recorder: Recorder, metadata: Sequence[Metadata]) -> None:
        self.recorder = recorder
        self.metadata = [
            [built for built in of_pass.values() if isinstance(built, Attention)]
            for of_pass in metadata
        ]
        launches = [built for of_pass in self.metadata for built in of_pass]
        self.updates_lengths = not all(built.on_device for built in launches)
        self.reads_lengths = any(built.on_device for built in launches)

    def replay(self) -> None:
        if not self.updates_lengths:
            self.recorder.run()

    def update(self, lengths: Sequence[list[int]]) -> None:
        for launches, pass_lengths in zip(self.metadata, lengths, strict=True):
            for built in launches:
                if not built.on_device:
                    built.lengths.copy_(torch.tensor(pass_lengths))
        self.recorder.run()


@dataclass
class FakeCapturer:
    """``Capturer``; ``calls`` in their order."""

    draft: FakeDraft
    calls: list[str] = field(default_factory=list)

    def measuring(self) -> Any:
        return contextlib.nullcontext()

    def capture(self, passes: Passes, run: Callable[[], None]) -> FakeGraph:
        with self.draft.running(passes.first, passes.batch), Recorder() as recorder:
            run()
        assert passes.first is not None
        later = [metadata for metadata in passes.later() if metadata is not None]
        return FakeGraph(recorder, [passes.first, *later])

    def wait_for_replay(self) -> None:
        self.calls.append("the host waits for the replay before")

    def wait_for_copied_drafts(self) -> None:
        self.calls.append("the stream waits for copied drafts")
