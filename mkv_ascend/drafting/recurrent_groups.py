# SPDX-License-Identifier: Apache-2.0
"""A draft's recurrent layers: which share a block table and metadata, and what a proposal does with
them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from mkv_ascend.drafting.draft import Metadata, PassBatch
from mkv_ascend.drafting.recurrent_states import (
    SCRATCH,
    RecurrentCaches,
    commit,
    tokens_to_commit,
)


@dataclass(frozen=True)
class TargetRows:
    """The rows of the pass in which a draft sees what the target has just seen.

    Attributes:
        begins: bool [B] on the host, rows that begin a request.
        row_lengths: tokens of each row that is run token by token, keeping the state after each;
            0 for rows that are run as a prefill. int32 [B] on the host.
        ones: int32 [B] on the device: every row starts from its block 0.
    """

    begins: torch.Tensor
    row_lengths: torch.Tensor
    ones: torch.Tensor


class RecurrentBuilder(Protocol):
    """The host's metadata builder of a group of recurrent layers; ``table``: int32 [B, columns]."""

    def need(self) -> Hashable:
        """Builders equal in this build the same but for the rows of the block table."""

    def first_pass(self, batch: PassBatch, table: torch.Tensor, rows: TargetRows) -> object:
        """Metadata of the pass over the target's own rows, without what ``finished`` does."""

    def finished(self, built: object, rows: TargetRows) -> object:
        """Metadata of that pass as the kernels want it."""

    def later_pass(self, batch: PassBatch, table: torch.Tensor, begins: torch.Tensor) -> object:
        """Metadata of a pass with one token per request; ``begins``: none does."""

    def for_table(self, built: object, table: torch.Tensor) -> object:
        """What this builder has just built, for a group with another block table."""


@dataclass(frozen=True)
class RecurrentGroup:
    """Recurrent layers that share one metadata object in every pass.

    Attributes:
        kv_group: id of the KV group whose block table they use.
        builder: of their metadata.
        layers: their names.
        caches: gives what each of them keeps, once it is allocated.
    """

    kv_group: int
    builder: RecurrentBuilder
    layers: tuple[str, ...]
    caches: Callable[[], list[RecurrentCaches]]


class RecurrentGroups:
    """The recurrent layers of a draft through one proposal after another.

    Args:
        groups: all of them; their caches must be allocated.
        block_tables: the engine's, int32 [most requests, columns], for each of ``groups``.
        requests: most requests of a batch.
        speculative: K.
    """

    def __init__(
        self,
        groups: Sequence[RecurrentGroup],
        block_tables: Sequence[torch.Tensor],
        requests: int,
        speculative: int,
    ) -> None:
        self.groups = tuple(groups)
        self.speculative = speculative
        self.requests = requests
        self._tables = list(block_tables)
        self._caches = [group.caches() for group in groups]
        device = block_tables[0].device
        self._ones = torch.ones(requests, dtype=torch.int32, device=device)
        self._none_begins = torch.zeros(requests, dtype=torch.bool)
        self._to_commit = torch.ones(requests, dtype=torch.int64, device=device)
        alike: dict[Hashable, list[int]] = {}
        for index, group in enumerate(self.groups):
            alike.setdefault(group.builder.need(), []).append(index)
        self.needs = tuple(tuple(indices) for indices in alike.values())
        """Groups, by index, that one run of a builder serves."""

    def for_graph(self, groups: Sequence[RecurrentGroup], requests: int) -> RecurrentGroups:
        """The same for a graph of ``requests`` requests, with block tables of its own.

        Args:
            groups: the same as these, with builders of their own: a graph reads their buffers.
        """
        tables = [torch.zeros_like(table[:requests]) for table in self._tables]
        return RecurrentGroups(groups, tables, requests, self.speculative)

    def refresh_tables(
        self, engine: RecurrentGroups, live: torch.Tensor, rejected: torch.Tensor
    ) -> None:
        """Take tables and counts as they are now; captured at the head of a graph.

        Args:
            engine: whose tables are those of the engine.
            live: int32 [requests], 1 for each request that is there and 0 for padding, which
                reads and writes block 0, as no request does.
            rejected: int32 [requests], tokens of each verify step that were rejected.
        """
        requests = live.shape[0]
        for own, table in zip(self._tables, engine._tables, strict=True):
            torch.mul(table[:requests], live[:, None], out=own)
        self._to_commit.copy_((self.speculative + 1 - rejected).clamp_(min=1))

    def take_rows(self, engine: RecurrentGroups, rows: torch.Tensor) -> None:
        """Take these rows (int64) of the engine's tables as the first rows of these."""
        for own, table in zip(self._tables, engine._tables, strict=True):
            own[: len(rows)] = table[rows]

    def rebuild_metadata(self, metadata: Metadata, first_column: int) -> Metadata:
        """Metadata of recurrent layers, made again from the rows of the tables as they are now.

        Args:
            metadata: of a pass, by layer.
            first_column: of the block tables, in this pass.
        """
        rebuilt: dict[str, object] = {}
        for need in self.needs:
            builder = self.groups[need[0]].builder
            for index in need:
                layers, table = self.groups[index].layers, self._tables[index][:, first_column:]
                rebuilt.update(dict.fromkeys(layers, builder.for_table(metadata[layers[0]], table)))
        return rebuilt

    def first_pass(self, batch: PassBatch, num_rejected: torch.Tensor | None) -> Metadata:
        """Metadata of the pass over the target's own rows; notes what is accepted of each row.

        Args:
            batch: its lengths count rejected tokens.
            num_rejected: [B], tokens of each row that were rejected; None: none.
        """
        requests, longest = batch.requests, self.speculative + 1
        self._to_commit[:requests] = tokens_to_commit(
            batch.query_start_loc, batch.lengths, num_rejected, longest
        )
        lengths = batch.query_start_loc_host.diff()
        before = batch.length_bounds[:requests] - lengths
        token_by_token = (before > 0) & (lengths <= longest)
        row_lengths = torch.where(token_by_token, lengths, 0).to(torch.int32)
        rows = TargetRows(before == 0, row_lengths, self._ones[:requests])
        tables = [table[:requests] for table in self._tables]
        metadata: dict[str, object] = {}
        for group, built in self._built(
            tables, lambda builder, table: builder.first_pass(batch, table, rows)
        ):
            metadata.update(dict.fromkeys(group.layers, group.builder.finished(built, rows)))
        return metadata

    def later_passes(self, batch: PassBatch) -> Metadata:
        """Metadata of every pass with one token per request; the same for all of them."""
        begins = self._none_begins[: batch.requests]
        tables = [table[: batch.requests, SCRATCH:] for table in self._tables]
        return {
            name: metadata
            for group, metadata in self._built(
                tables, lambda builder, table: builder.later_pass(batch, table, begins)
            )
            for name in group.layers
        }

    def _built(
        self,
        tables: Sequence[torch.Tensor],
        build: Callable[[RecurrentBuilder, torch.Tensor], object],
    ) -> Iterator[tuple[RecurrentGroup, object]]:
        """Each group with its metadata, built once where groups differ in their table alone."""
        for leader, *others in self.needs:
            group = self.groups[leader]
            built = build(group.builder, tables[leader])
            # The leader's last: what the kernels want of it may be written into it.
            for index in others:
                yield self.groups[index], group.builder.for_table(built, tables[index])
            yield group, built

    def commit(self, requests: int) -> None:
        """After the pass over the target's rows: keep the states of what was accepted."""
        accepted = self._to_commit[:requests]
        for caches, table in zip(self._caches, self._tables, strict=True):
            commit(caches, table[:requests], accepted, self.speculative)
