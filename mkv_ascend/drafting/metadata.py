# SPDX-License-Identifier: Apache-2.0
"""Attention metadata of a proposal: built once per distinct need, shared by all groups and steps.

A need is a builder class, what it reads of the spec, and the shape of the pass. A proposal has two
shapes, that of the first pass and that of the later steps, so its builders run twice per distinct
(builder, spec), however many groups and steps there are.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from mkv_ascend.drafting.copying import shallow_copy
from mkv_ascend.drafting.groups import DraftGroups
from mkv_ascend.drafting.plan import LaterSteps
from mkv_ascend.drafting.sharing import (
    RotaryRows,
    Sharing,
    StepLengths,
    run_builder,
    sharing_of,
)

Metadata = dict[str, Any]
"""Layer name -> its metadata, in the order of groups."""


@dataclass(frozen=True)
class Need:
    """Groups that one run of a builder serves; indices into ``DraftGroups.groups``."""

    builder: Any
    groups: tuple[int, ...]
    sharing: Sharing | None


def distinct_needs(groups: DraftGroups, builders: Sequence[Any]) -> tuple[Need, ...]:
    """Which groups one builder serves for all.

    Args:
        builders: of each of ``groups.groups``.
    """
    members: dict[Hashable, list[int]] = {}
    for index, (group, builder) in enumerate(zip(groups.groups, builders, strict=True)):
        sharing = sharing_of(builder)
        alike = index if sharing is None else sharing.reads(group.spec)
        members.setdefault((type(builder), alike), []).append(index)
    return tuple(
        Need(builders[indices[0]], tuple(indices), sharing_of(builders[indices[0]]))
        for indices in members.values()
    )


@dataclass
class MetadataMaker:
    """Makes the metadata of all passes of a proposal.

    Attributes:
        groups: the draft's groups.
        needs: see ``distinct_needs``.
        builds: how often a builder ran, in all.
        rotary: rotary rows of the proposal that is being made, where layers take them from
            metadata.
    """

    groups: DraftGroups
    needs: tuple[Need, ...]
    builds: int = 0
    _layers: tuple[tuple[str, int], ...] = field(init=False)
    rotary: RotaryRows | None = None

    def __post_init__(self) -> None:
        self._layers = self.groups.layers()

    def builds_per_proposal(self, later_steps: int) -> int:
        """How often builders run in one proposal with so many later steps."""
        known = sum(need.sharing is not None for need in self.needs)
        others = len(self.needs) - known
        return known * (2 if later_steps else 1) + others * (1 + later_steps)

    def first_pass(
        self,
        common: Any,
        slots: Sequence[torch.Tensor],
        tables: Sequence[torch.Tensor],
        later: LaterSteps | None = None,
    ) -> Metadata:
        """Metadata of the first pass.

        Args:
            common: vllm-ascend's common metadata of the pass; block table and slots are replaced.
            slots: per KV group of the draft, int32 [rows].
            tables: per KV group of the draft, int32 [requests, columns].
            later: of the same proposal: its rotary rows are taken with those of this pass.
        """
        self.rotary = self._rotary_rows(common.positions, later)
        built = [None] * len(self.groups.groups)
        for need in self.needs:
            metadata = self._build(need, common, need.groups[0], slots, tables)
            if not getattr(metadata, "causal", True):
                metadata.attn_mask = None
            built[need.groups[0]] = metadata
            for index in need.groups[1:]:
                assert need.sharing is not None
                table = self.groups.groups[index].table
                built[index] = need.sharing.for_group(metadata, tables[table], slots[table])
        return self._by_layer(built)

    def later_steps(self, common: Any, steps: LaterSteps) -> LaterMetadata:
        """Metadata of all later steps, which still lacks the lengths on the host.

        Args:
            common: common metadata of a pass with one token per request; what differs by step and
                group is replaced.
        """
        if self.rotary is None:
            self.rotary = self._rotary_rows(None, steps)
        per_step: list[list[Any]] = [[None] * len(self.groups.groups) for _ in steps.positions]
        for need in self.needs:
            if need.sharing is None:
                continue
            leader = need.groups[0]
            template = self._build(
                need, common, leader, steps.slots[0], steps.tables, draft_index=1
            )
            of_steps = need.sharing.for_steps(template, steps, self.rotary)
            for step, metadata in enumerate(of_steps):
                per_step[step][leader] = metadata
        self.rotary = None
        return LaterMetadata(self, common, steps, per_step)

    def _rotary_rows(
        self, first: torch.Tensor | None, later: LaterSteps | None
    ) -> RotaryRows | None:
        """Rotary rows of the passes, if any layer takes them from its metadata: one model's."""
        positions = None if later is None else later.all_positions
        for need in self.needs:
            if need.sharing is not None:
                rows = need.sharing.rotary_rows(need.builder, first, positions)
                if rows is not None:
                    return rows
        return None

    def _build(
        self,
        need: Need,
        common: Any,
        group: int,
        slots: Sequence[torch.Tensor],
        tables: Sequence[torch.Tensor],
        draft_index: int = 0,
    ) -> Any:
        own = shallow_copy(common)
        table = self.groups.groups[group].table
        own.block_table_tensor, own.slot_mapping = tables[table], slots[table]
        self.builds += 1
        if need.sharing is None:
            return run_builder(need.builder, own, draft_index)
        return need.sharing.build(need.builder, own, draft_index, self.rotary)

    def _by_layer(self, per_group: Sequence[Any]) -> Metadata:
        return {name: per_group[index] for name, index in self._layers}


@dataclass
class LaterMetadata:
    """Metadata of the later steps, complete once the lengths are known on the host."""

    maker: MetadataMaker
    common: Any
    steps: LaterSteps
    per_step: list[list[Any]]

    def with_lengths(self, lengths: torch.Tensor) -> list[Metadata]:
        """The metadata of each later step.

        Args:
            lengths: int32 [K - 1, requests] on the host.
        """
        return [
            self._step(step, StepLengths(row, row.tolist())) for step, row in enumerate(lengths)
        ]

    def _step(self, step: int, lengths: StepLengths) -> Metadata:
        maker, per_group = self.maker, self.per_step[step]
        slots, tables = self.steps.slots[step], self.steps.tables
        for need in maker.needs:
            leader, *others = need.groups
            if need.sharing is None:
                per_group[leader] = self._built_for(need, leader, step, lengths)
                continue
            need.sharing.with_lengths(per_group[leader], lengths)
            table = maker.groups.groups[leader].table
            if step > 0:
                per_group[leader] = need.sharing.for_group(
                    per_group[leader], tables[table], slots[table]
                )
            for index in others:
                table = maker.groups.groups[index].table
                per_group[index] = need.sharing.for_group(
                    per_group[leader], tables[table], slots[table]
                )
        return maker._by_layer(per_group)

    def _built_for(self, need: Need, group: int, step: int, lengths: StepLengths) -> Any:
        """Metadata of a builder that nothing is known of: it sees this step's own values."""
        own = shallow_copy(self.common)
        own.positions = self.steps.request_positions[step]
        own.seq_lens = self.steps.lengths[step]
        own.seq_lens_cpu = own._seq_lens_cpu = own.seq_lens_cpu_upper_bound = lengths.tensor
        own.num_computed_tokens_cpu = own._num_computed_tokens_cpu = lengths.tensor - 1
        slots, tables = self.steps.slots[step], self.steps.tables
        return self.maker._build(need, own, group, slots, tables, draft_index=step + 1)
