# SPDX-License-Identifier: Apache-2.0
"""Attention metadata of a proposal: built once per distinct need, shared by groups and passes.

A need is what a builder reads, together with the shape of the pass. A proposal has two shapes: the
first pass and the later ones. So a builder runs twice per need, for any number of groups and
passes. An unknown builder runs for each of its groups and passes.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

import torch

from mkv_ascend.drafting.draft import (
    Builder,
    CosSinRows,
    DraftGroups,
    HostLengths,
    LaterPasses,
    Metadata,
    PassBatch,
)

Tensors = Sequence[torch.Tensor]


@dataclass(frozen=True)
class Need:
    """Groups that one run of a builder serves; indices into ``DraftGroups.groups``."""

    builder: Builder
    groups: tuple[int, ...]


def distinct_needs(builders: Sequence[Builder]) -> tuple[Need, ...]:
    """The fewest runs of builders that serve all groups.

    Args:
        builders: the builder of each group.
    """
    members: dict[Hashable, list[int]] = {}
    for index, builder in enumerate(builders):
        alike = builder.need() if builder.shares else index
        members.setdefault((type(builder), builder.shares, alike), []).append(index)
    return tuple(Need(builders[indices[0]], tuple(indices)) for indices in members.values())


class Needs:
    """Makes the metadata of all passes of a proposal.

    ``distinct``: see ``distinct_needs``. ``builds``: total number of runs of builders.
    ``read_host_lengths``: whether any layer takes the lengths of later passes from the host.
    """

    def __init__(self, groups: DraftGroups, builders: Sequence[Builder]) -> None:
        self.groups = groups
        self.distinct = distinct_needs(builders)
        self.read_host_lengths = any(builder.reads_host_lengths for builder in builders)
        self.builds = 0
        self._layers = groups.layers()

    def builds_per_proposal(self, later_passes: int) -> int:
        """Number of runs of builders in a proposal with ``later_passes`` later passes."""
        sharing = sum(need.builder.shares for need in self.distinct)
        others = len(self.distinct) - sharing
        return sharing * (2 if later_passes else 1) + others * (1 + later_passes)

    def cos_sin_rows(
        self, first: torch.Tensor | None, later: torch.Tensor | None
    ) -> CosSinRows | None:
        """Rows of the rotary tables for all passes; None if no layer reads them in metadata."""
        for need in self.distinct:
            rows = need.builder.cos_sin_rows(first, later)
            if rows is not None:
                return rows
        return None

    def first_pass(self, batch: PassBatch, rows: CosSinRows | None) -> Metadata:
        """Metadata of the first pass."""
        built: list[object] = [None] * len(self.groups.groups)
        for need in self.distinct:
            leader = need.groups[0]
            built[leader] = self.build(need, batch, rows)
            for index in need.groups[1:]:
                built[index] = self.for_group(need, built[leader], batch.slots, batch.tables, index)
        return self.by_layer(built)

    def later_passes(
        self, batch: PassBatch, later: LaterPasses, rows: CosSinRows | None
    ) -> LaterMetadata:
        """Metadata of all later passes, still without the lengths on the host.

        Args:
            batch: rows of the first later pass.
        """
        per_pass: list[list[object]] = [[None] * len(self.groups.groups) for _ in later.positions]
        for need in self.distinct:
            if need.builder.shares:
                template = self.build(need, batch, rows)
                made = need.builder.for_later_passes(template, later, rows)
                for metadata, pass_metadata in zip(made, per_pass, strict=True):
                    pass_metadata[need.groups[0]] = metadata
        return LaterMetadata(self, batch, later, rows, per_pass)

    def rebuilt_in_graph(
        self, metadata: Metadata, batch: PassBatch, rows: CosSinRows | None
    ) -> Metadata:
        """``metadata`` of a pass, in which a graph has built what each replay must renew."""
        rebuilt = {
            need.groups[0]: self.build(need, batch, rows)
            for need in self.distinct
            if need.builder.builds_in_graphs
        }
        anew = {name: rebuilt[index] for name, index in self._layers if index in rebuilt}
        return {**metadata, **anew}

    def build(self, need: Need, batch: PassBatch, rows: CosSinRows | None) -> object:
        """Run the builder of ``need`` for its first group."""
        table = self.groups.groups[need.groups[0]].table
        self.builds += 1
        return need.builder.build(batch, batch.slots[table], batch.tables[table], rows)

    def for_group(
        self, need: Need, built: object, slots: Tensors, tables: Tensors, group: int
    ) -> object:
        """``built`` for another group; ``slots`` and ``tables`` hold one tensor per KV group."""
        table = self.groups.groups[group].table
        return need.builder.for_group(built, slots[table], tables[table])

    def by_layer(self, per_group: Sequence[object]) -> Metadata:
        """Metadata by layer, from metadata by group."""
        return {name: per_group[index] for name, index in self._layers}


@dataclass(frozen=True)
class LaterMetadata:
    """Metadata of the later passes, complete once the lengths are known where they are read."""

    needs: Needs
    batch: PassBatch
    later: LaterPasses
    rows: CosSinRows | None
    per_pass: list[list[object]]

    def with_lengths(self, lengths: torch.Tensor) -> list[Metadata]:
        """The metadata of each later pass.

        Args:
            lengths: int32 [passes, B] on the host.
        """
        return [
            self._pass(index, HostLengths(row, row.tolist())) for index, row in enumerate(lengths)
        ]

    def without_lengths(self) -> list[Metadata]:
        """The metadata of each later pass, where no layer takes lengths from the host."""
        return [self._pass(index, None) for index in range(len(self.per_pass))]

    def _pass(self, index: int, lengths: HostLengths | None) -> Metadata:
        needs, per_group = self.needs, self.per_pass[index]
        slots, tables = self.later.slots[index], self.later.tables
        for need in needs.distinct:
            leader, *others = need.groups
            if not need.builder.shares:
                known = None
                if need.builder.reads_host_lengths:
                    assert lengths is not None, "it was asked whether any layer reads them"
                    known = lengths.tensor
                batch = batch_of_later_pass(self.batch, self.later, index, known)
                per_group[leader] = needs.build(need, batch, self.rows)
                continue
            if need.builder.reads_host_lengths:
                assert lengths is not None, "it was asked whether any layer reads them"
                need.builder.set_lengths(per_group[leader], lengths)
            if index > 0:
                per_group[leader] = needs.for_group(need, per_group[leader], slots, tables, leader)
            for group in others:
                per_group[group] = needs.for_group(need, per_group[leader], slots, tables, group)
        return needs.by_layer(per_group)


def batch_of_later_pass(
    batch: PassBatch, later: LaterPasses, index: int, lengths: torch.Tensor | None
) -> PassBatch:
    """The rows of one later pass, for a builder that shares nothing.

    Args:
        batch: rows of the first later pass.
        index: number of the pass among the later ones.
        lengths: int32 [B] on the host; None where only their bounds are known there.
    """
    bounds = batch.length_bounds + index if lengths is None else lengths
    return replace(
        batch,
        index=index + 1,
        lengths=later.lengths[index],
        host_lengths=bounds,
        length_bounds=bounds,
        positions=later.request_positions[index],
        slots=later.slots[index],
    )
