# SPDX-License-Identifier: Apache-2.0
"""A draft's recurrent layers: their groups, their metadata, and the commit of their states.

Which state is true depends on which tokens were accepted. A request has 1 + K blocks of states in
each KV group of recurrent layers. Its true state is the one after the last accepted token. Between
two proposals that state is in block 0 and nowhere else. A proposal

1. runs the draft over the target's own row, including drafts that were rejected. The state after
   token j of the row goes to block j. The inputs of the convolution stay in the window of block 0,
   one behind another, so that the window can end at any of them.
2. commits: the state after the last accepted token goes to block 0, and a copy to block 1.
3. decodes in place on the copy, which is then dropped.

So no count of accepted tokens is carried from one step to the next. Rows may change their order,
pause, and start anew. A row without drafts needs no special case.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from mkv_ascend.drafting.draft import Metadata, PassBatch

COMMITTED, SCRATCH = 0, 1
"""Columns of the block table: the block of the true state, and that of the copy for drafting."""


@dataclass(frozen=True)
class RecurrentCaches:
    """The caches of one layer.

    Attributes:
        windows: the last inputs of a convolution in the latest row, [blocks, rows, channels].
        states: states of which each block holds one, [blocks, ...].
    """

    windows: tuple[torch.Tensor, ...]
    states: tuple[torch.Tensor, ...]


def tokens_to_commit(
    query_start_loc: torch.Tensor,
    lengths: torch.Tensor,
    num_rejected: torch.Tensor | None,
    longest_row: int,
) -> torch.Tensor:
    """The token of its row after which a request's state is true; int64 [B], counted from 1.

    That is the last token that was not rejected. A row that begins a request, or has more than
    K + 1 tokens, ran as a prefill. A prefill leaves its last state in the place of the first
    token's state, so such a row counts as one token.

    Args:
        query_start_loc: int32 [B + 1], where rows begin.
        lengths: int32 [B], tokens of each request after its row, rejected ones included.
        num_rejected: [B], rejected tokens of the row; None without any.
        longest_row: K + 1.
    """
    rows = query_start_loc.diff()
    kept = rows if num_rejected is None else rows - num_rejected
    token_by_token = (rows <= longest_row) & (lengths > rows)
    return torch.where(token_by_token, kept, 1).clamp(min=1).to(torch.int64)


def commit(
    layers: Sequence[RecurrentCaches], table: torch.Tensor, accepted: torch.Tensor, speculative: int
) -> None:
    """Copy the state after the last accepted token to blocks 0 and 1 of each request.

    Args:
        layers: caches of the layers that share the block table.
        table: int32 [B, 1 + K] or wider.
        accepted: int64 [B], see ``tokens_to_commit``.
        speculative: K; a window has K rows more than its convolution needs.
    """
    last = accepted - 1
    source = table.gather(1, last[:, None])[:, 0].long()
    committed = table[:, COMMITTED].long()
    targets = torch.cat([committed, table[:, SCRATCH].long()])
    for layer in layers:
        for window in layer.windows:
            kept = window.shape[1] - speculative
            rows = last[:, None] + torch.arange(kept, device=last.device)
            found = window[committed[:, None], rows]
            window[targets, :kept] = torch.cat([found, found])
        for state in layer.states:
            found = state[source]
            state[targets] = torch.cat([found, found])


@dataclass(frozen=True)
class TargetRows:
    """The rows of the pass in which the draft runs over the target's latest input.

    Attributes:
        begins: bool [B] on the host, rows that begin a request.
        row_lengths: int32 [B] on the host, tokens of each row that runs token by token and keeps
            the state after each; 0 for rows that run as a prefill.
        ones: int32 [B] on the device; every row starts from its block 0.
    """

    begins: torch.Tensor
    row_lengths: torch.Tensor
    ones: torch.Tensor


class RecurrentBuilder(Protocol):
    """The host's metadata builder of a group of recurrent layers; ``table``: int32 [B, columns]."""

    def need(self) -> Hashable:
        """Builders equal in this differ only in the rows of the block table."""

    def first_pass(self, batch: PassBatch, table: torch.Tensor, rows: TargetRows) -> object:
        """Metadata of the pass over the target's own rows; ``finished`` completes it."""

    def finished(self, built: object, rows: TargetRows) -> object:
        """Complete the metadata of that pass for the kernels."""

    def later_pass(self, batch: PassBatch, table: torch.Tensor, begins: torch.Tensor) -> object:
        """Metadata of a pass with one token per request; ``begins`` is all False."""

    def for_table(self, built: object, table: torch.Tensor) -> object:
        """``built``, which this builder has just made, for a group with another block table."""


@dataclass(frozen=True)
class RecurrentGroup:
    """Recurrent layers that share one metadata object in every pass.

    Attributes:
        kv_group: id of the KV group whose block table the layers use.
        builder: builder of their metadata.
        layers: their names.
        caches: returns the caches of each layer, once they are allocated.
    """

    kv_group: int
    builder: RecurrentBuilder
    layers: tuple[str, ...]
    caches: Callable[[], list[RecurrentCaches]]


class RecurrentGroups:
    """All recurrent layers of a draft.

    Args:
        groups: their groups; the caches must be allocated before the first commit.
        block_tables: the engine's, one int32 [most requests, columns] for each of ``groups``.
        requests: largest number of requests of a batch.
        speculative: K, the largest one where K follows the load.
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
        device = block_tables[0].device
        self._ones = torch.ones(requests, dtype=torch.int32, device=device)
        self._none_begins = torch.zeros(requests, dtype=torch.bool, device="cpu")
        self._to_commit = torch.ones(requests, dtype=torch.int64, device=device)
        self._target_rows: TargetRows
        """Of the latest first pass; nothing reads it before there was one."""
        alike: dict[Hashable, list[int]] = {}
        for index, group in enumerate(self.groups):
            alike.setdefault(group.builder.need(), []).append(index)
        self.needs = tuple(tuple(indices) for indices in alike.values())
        """Indices of groups; one run of a builder serves each tuple."""

    @functools.cached_property
    def _caches(self) -> list[list[RecurrentCaches]]:
        """Of each group; taken at the first commit, because caches may be allocated after this."""
        return [group.caches() for group in self.groups]

    def for_graph(self, groups: Sequence[RecurrentGroup], requests: int) -> RecurrentGroups:
        """The same layers for a graph of ``requests`` requests, with block tables of its own.

        Args:
            groups: the same groups with separate builders, because a graph reads their buffers.
        """
        tables = [torch.zeros_like(table[:requests]) for table in self._tables]
        return RecurrentGroups(groups, tables, requests, self.speculative)

    def refresh_tables(
        self, engine: RecurrentGroups, live: torch.Tensor, rejected: torch.Tensor
    ) -> None:
        """Copy the current tables and counts; captured at the head of a graph.

        Tokens to commit count from the rows that the graph verifies, which may be shorter than
        K + 1 where K follows the load.

        Args:
            engine: the layers that use the engine's tables.
            live: int32 [requests], 1 for a live request and 0 for padding. Padding reads and
                writes block 0, which belongs to no request.
            rejected: int32 [requests], rejected tokens of each verify step.
        """
        requests = live.shape[0]
        for own, table in zip(self._tables, engine._tables, strict=True):
            torch.mul(table[:requests], live[:, None], out=own)
        row_length = int(self._target_rows.row_lengths[0])
        self._to_commit.copy_((row_length - rejected).clamp_(min=1))

    def take_rows(self, engine: RecurrentGroups, rows: torch.Tensor) -> None:
        """Copy ``rows`` (int64) of the engine's tables to the first rows of these tables."""
        for own, table in zip(self._tables, engine._tables, strict=True):
            own[: len(rows)] = table[rows]

    def rebuild_metadata(self, metadata: Metadata, first_column: int) -> Metadata:
        """The recurrent layers' metadata, rebuilt from the current rows of the tables.

        Args:
            metadata: metadata of a pass, by layer.
            first_column: first column of the block tables in this pass.
        """
        rebuilt: dict[str, object] = {}
        for need in self.needs:
            builder = self.groups[need[0]].builder
            for index in need:
                layers, table = self.groups[index].layers, self._tables[index][:, first_column:]
                built = builder.for_table(metadata[layers[0]], table)
                if first_column == COMMITTED:
                    built = builder.finished(built, self._target_rows)
                rebuilt.update(dict.fromkeys(layers, built))
        return rebuilt

    def first_pass(self, batch: PassBatch, num_rejected: torch.Tensor | None) -> Metadata:
        """Metadata of the pass over the target's own rows; notes the accepted tokens of each row.

        Args:
            batch: the pass; its lengths include rejected tokens.
            num_rejected: [B], rejected tokens of each row; None without any.
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
        self._target_rows = rows
        tables = [table[:requests] for table in self._tables]
        metadata: dict[str, object] = {}
        for group, built in self._built(
            tables, lambda builder, table: builder.first_pass(batch, table, rows)
        ):
            metadata.update(dict.fromkeys(group.layers, group.builder.finished(built, rows)))
        return metadata

    def later_passes(self, batch: PassBatch) -> Metadata:
        """Metadata that all passes with one token per request share."""
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
        """Each group with its metadata, built once for groups that differ only in their table."""
        for leader, *others in self.needs:
            group = self.groups[leader]
            built = build(group.builder, tables[leader])
            # The leader comes last, because ``finished`` may write into its metadata.
            for index in others:
                yield self.groups[index], group.builder.for_table(built, tables[index])
            yield group, built

    def commit(self, requests: int) -> None:
        """Commit the accepted states, after the pass over the target's rows."""
        accepted = self._to_commit[:requests]
        for caches, table in zip(self._caches, self._tables, strict=True):
            commit(caches, table[:requests], accepted, self.speculative)
