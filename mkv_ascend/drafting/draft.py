# SPDX-License-Identifier: Apache-2.0
"""The input of a proposal, and the protocols of the draft that it runs.

A host's adapter gives both. Nothing here knows vLLM. ``Draft`` and ``Builder`` are small enough for
a fake in plain torch (``tests/support/fake_draft.py``).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch


@dataclass(frozen=True)
class DraftGroup:
    """Layers of the draft that share one metadata object in every pass.

    Attributes:
        kv_group: id of the KV group whose block table the layers use.
        table: index of that KV group among those of the draft; it selects the row of slots.
        backend: attention backend class of the layers.
        spec: the host's spec of their cache, in kernel blocks.
        heads: query heads of a layer.
        layer_names: the layers, in the order in which the draft runs them.
        causal: whether a row of theirs sees no later row of a block of mask tokens. Rows of other
            passes never do.
    """

    kv_group: int
    table: int
    backend: type[object]
    spec: Hashable
    heads: int | None
    layer_names: tuple[str, ...]
    causal: bool = False


@dataclass(frozen=True)
class DraftGroups:
    """All groups of one draft.

    Attributes:
        groups: in the order in which the draft first runs one of their layers.
        kv_groups: ids of the KV groups, each once; ``DraftGroup.table`` is an index into these.
        block_sizes: tokens in a kernel block of each of ``kv_groups``.
    """

    groups: tuple[DraftGroup, ...]
    kv_groups: tuple[int, ...]
    block_sizes: tuple[int, ...]

    def layers(self) -> tuple[tuple[str, int], ...]:
        """Each layer with the index of its group, sorted by group."""
        return tuple(
            (name, index) for index, group in enumerate(self.groups) for name in group.layer_names
        )

    def describe(self) -> str:
        """Each KV group of the draft and what its layers share, in words."""
        return "; ".join(
            f"KV group {group.kv_group}: {len(group.layer_names)} layers of "
            f"{type(group.spec).__name__} on {group.backend.__name__}"
            for group in self.groups
        )


Copied = TypeVar("Copied")


def shallow_copy(value: Copied) -> Copied:
    """``copy.copy`` for a plain object in a tenth of its time; runs for each group and pass."""
    other = type(value).__new__(type(value))
    other.__dict__.update(value.__dict__)
    return other


Metadata = Mapping[str, object]
"""Layer name -> its attention metadata; only the host reads its contents."""


@dataclass(frozen=True)
class TargetOutput:
    """The output of the target's step: T tokens of B requests.

    Attributes:
        token_ids: int32 [T], the target's input.
        positions: [T], position of each token in its sequence.
        next_token_ids: [B], the token that the target sampled last.
        hidden_states: [T, width]; heads on hidden states read them.
        num_rejected: [B], rejected tokens at the end of each request; None without any.
        query_start_loc, query_start_loc_host: int32 [B + 1], where requests begin among the tokens.
        host_lengths: int32 [B] on the host, keys of each request, rejected tokens included.
        length_bounds: int32 [B] on the host, upper bounds of these. With asynchronous scheduling
            the host does not know how many tokens earlier steps rejected.
        longest_row: largest number of tokens of one request.
        rope_positions: [axes, T], rotary positions where they differ from ``positions`` (M-RoPE).
        multimodal: the host's embeddings of images and their places.
        common: the input that the host's metadata builders share in the target's pass.
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    next_token_ids: torch.Tensor
    hidden_states: torch.Tensor | None
    num_rejected: torch.Tensor | None
    query_start_loc: torch.Tensor
    query_start_loc_host: torch.Tensor
    host_lengths: torch.Tensor
    length_bounds: torch.Tensor
    longest_row: int
    rope_positions: torch.Tensor | None = None
    multimodal: object = None
    common: object = None

    @property
    def requests(self) -> int:
        """B."""
        return self.next_token_ids.shape[0]


@dataclass(frozen=True)
class PassBatch:
    """The rows of one pass of the draft, for B requests over G KV groups.

    Attributes:
        index: number of the pass in its proposal; 0 is the first.
        requests: B.
        rows: number of tokens.
        input_rows: ``rows`` with padding, where ranks must run equally many rows.
        rows_across_ranks: ``input_rows`` of each rank, as the host keeps it.
        query_start_loc, query_start_loc_host: int32 [B + 1].
        longest_row: largest number of tokens of one request.
        lengths, host_lengths: int32 [B], keys that the last row of each request may see.
        length_bounds: int32 [B] on the host, upper bounds of these.
        positions: int32 [rows] in the sequence.
        slots: one int32 [rows] per KV group.
        tables: one int32 [B, columns] per KV group.
        common: see ``TargetOutput``.
        causal: whether no row sees a later row, in no layer; see also ``DraftGroup``.
    """

    index: int
    requests: int
    rows: int
    input_rows: int
    rows_across_ranks: torch.Tensor | None
    query_start_loc: torch.Tensor
    query_start_loc_host: torch.Tensor
    longest_row: int
    lengths: torch.Tensor
    host_lengths: torch.Tensor
    length_bounds: torch.Tensor
    positions: torch.Tensor
    slots: Sequence[torch.Tensor]
    tables: Sequence[torch.Tensor]
    common: object
    causal: bool = True


@dataclass(frozen=True)
class LaterPasses:
    """Views of a plan (``plan.py``) for ``rows`` rows, ``requests`` of them live.

    Attributes:
        all_positions, all_lengths: int32 [K - 1, rows].
        all_slots: int32 [K - 1, groups, rows].
        host_lengths: pinned host memory for a copy of ``all_lengths``.
        positions: per pass, int32 [rows]; the draft runs with these.
        request_positions, lengths: per pass, int32 [requests].
        slots: per pass and KV group, int32 [requests].
        tables: per KV group, int32 [requests, columns].
    """

    all_positions: torch.Tensor
    all_lengths: torch.Tensor
    all_slots: torch.Tensor
    host_lengths: torch.Tensor
    positions: tuple[torch.Tensor, ...]
    request_positions: tuple[torch.Tensor, ...]
    lengths: tuple[torch.Tensor, ...]
    slots: tuple[tuple[torch.Tensor, ...], ...]
    tables: tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class HostLengths:
    """Lengths of one later pass, on the host: int32 [B] and the same as a list."""

    tensor: torch.Tensor
    values: list[int]


@dataclass(frozen=True)
class DraftBuffers:
    """The inputs of the draft's passes, at addresses that never change.

    Attributes:
        token_ids: int32 [most rows].
        positions: int32 [most rows], in the sequence.
        sample_rows: int32, rows that are sampled from.
        rope_positions: int32 [axes, most rows], if they differ from ``positions``.
        hidden_states: [most rows, width], if the draft is a head on hidden states.
        masked_state: [width], the hidden state of a row that is drafted in parallel.
        joined_states: [most rows of a graph, joined width], hidden states that the draft combines
            inside its graphs; None if it combines none, or combines them outside of graphs.
        embeddings: [most rows, width], if the draft takes embeddings (of images) for token ids.
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    sample_rows: torch.Tensor
    rope_positions: torch.Tensor | None = None
    hidden_states: torch.Tensor | None = None
    masked_state: torch.Tensor | None = None
    joined_states: torch.Tensor | None = None
    embeddings: torch.Tensor | None = None

    def positions_of(self, rows: int) -> torch.Tensor:
        """Positions of the first pass as the draft takes them, [rows] or [axes, rows]."""
        rope = self.rope_positions
        return self.positions[:rows] if rope is None else rope[:, :rows]


@dataclass(frozen=True)
class HiddenStates:
    """Hidden states of a forward: ``last`` for logits, ``hidden`` for the next pass."""

    last: torch.Tensor
    hidden: torch.Tensor


class Event(Protocol):
    """A place in the device's stream that the host can wait for."""

    def record(self) -> None:
        """Set the place after everything that was launched so far."""

    def synchronize(self) -> None:
        """Wait until the device reaches the place."""


class CosSinRows(Protocol):
    """Rows of the rotary tables for all passes; some layers read them in their metadata."""

    def regather(self) -> None:
        """Select the rows at the current positions anew, into the same memory."""


class Builder(Protocol):
    """The host's metadata builder of one attention group.

    ``shares``: whether metadata for one group and pass can be turned into that of others.
    ``reads_host_lengths``: whether its layers take the lengths of later passes from the host.
    ``builds_in_graphs``: whether its launches make metadata that every replay must renew. A graph
    then runs it at its head. It reads nothing on the host but shapes and bounds of lengths.
    """

    shares: bool
    reads_host_lengths: bool
    builds_in_graphs: bool

    def need(self) -> Hashable:
        """Builders that share and are equal in this value build the same metadata."""

    def cos_sin_rows(
        self, first: torch.Tensor | None, later: torch.Tensor | None
    ) -> CosSinRows | None:
        """The rows that its layers read in metadata; None if they read none.

        Args:
            first: positions of the first pass, int32 [rows].
            later: positions of the later passes, int32 [passes, rows].
        """

    def build(
        self, batch: PassBatch, slots: torch.Tensor, table: torch.Tensor, rows: CosSinRows | None
    ) -> object:
        """Build a pass's metadata for ``slots`` int32 [rows] and ``table`` int32 [B, columns]."""

    def for_group(self, built: object, slots: torch.Tensor, table: torch.Tensor) -> object:
        """A copy of ``built`` for other slots and another table."""

    def for_later_passes(
        self, built: object, later: LaterPasses, rows: CosSinRows | None
    ) -> list[object]:
        """``built`` for each of the later passes, without host lengths."""

    def set_lengths(self, built: object, lengths: HostLengths) -> None:
        """Write a later pass's lengths into its own metadata."""


class Draft(Protocol):
    """A draft model as its host runs it."""

    groups: DraftGroups
    builders: Sequence[Builder]
    buffers: DraftBuffers

    def share_rows(self, rows: int) -> tuple[int, torch.Tensor | None]:
        """``input_rows`` and ``rows_across_ranks`` for a pass of ``rows`` rows."""

    def later_rows(self, input_rows: int, requests: int) -> int:
        """Rows of a later pass; the first pass's where ranks must run equally many rows."""

    def combine(self, states: torch.Tensor) -> torch.Tensor:
        """The target's hidden states as the draft takes them, [T, width]."""

    def embed(self, rows: int, multimodal: object = None) -> None:
        """Embed the token ids in the buffer, if the draft takes embeddings."""

    def running(self, metadata: Metadata | None, batch: PassBatch) -> AbstractContextManager[None]:
        """The host's forward context of a proposal, with metadata of its first pass."""

    def use(self, metadata: Metadata | None) -> None:
        """Set the metadata of the next forward; inside ``running``."""

    def begin_later_passes(self, rows: int, requests: int) -> None:
        """Let all following forwards have ``rows`` rows; inside ``running``."""

    def forward(self, rows: int, positions: torch.Tensor | None = None) -> HiddenStates:
        """One forward over rows of the buffers.

        Args:
            positions: positions of a later pass; None for the first pass, whose positions are in
                the buffer.
        """

    def sample(
        self, states: torch.Tensor, rows: torch.Tensor | slice, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The greedy token of each of ``rows``; int64, written to ``out`` if given."""

    def feed_back(
        self, tokens: torch.Tensor, hidden: torch.Tensor, rows: torch.Tensor | slice
    ) -> None:
        """Make the tokens drafted last the input of the next pass.

        Args:
            tokens: int64 [B].
            hidden: hidden states of the last pass; ``rows`` of them go on.
        """


class ContextDraft(Draft, Protocol):
    """A draft that makes keys and values from the target's hidden states."""

    def write_context(
        self, states: torch.Tensor, positions: torch.Tensor, slots: torch.Tensor
    ) -> None:
        """Write keys and values of combined states [T, width] to ``slots`` int32 [G, T]."""
