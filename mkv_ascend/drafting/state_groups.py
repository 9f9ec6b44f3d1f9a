# SPDX-License-Identifier: Apache-2.0
"""A draft's recurrent layers: which share a block table and metadata, and what a proposal does
with them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from mkv_ascend.drafting.copying import shallow_copy
from mkv_ascend.drafting.groups import kv_group_of, spec_of
from mkv_ascend.drafting.state_kinds import STATE_KINDS, CatchUp, StateKind
from mkv_ascend.drafting.states import SCRATCH, StateCaches, settle, taken_tokens

Metadata = dict[str, Any]
"""Layer name -> its metadata."""


@dataclass(frozen=True)
class StateGroup:
    """Recurrent layers that share one metadata object in every pass.

    Attributes:
        kv_group: id of the KV group whose block table they use.
        kind: how their metadata is built and where their states lie.
        builder: the metadata builder, made with the draft's configuration.
        spec: their ``MambaSpec``.
        layers: by name.
    """

    kv_group: int
    kind: StateKind
    builder: Any
    spec: Any
    layers: Mapping[str, Any]


def find_state_groups(
    layers: Mapping[str, Any], kv_cache_groups: Sequence[Any], config: Any, device: Any
) -> tuple[StateGroup, ...]:
    """Sort recurrent layers into groups and make their builders.

    Args:
        layers: the draft's recurrent layers by name.
        kv_cache_groups: vLLM's ``KVCacheGroupSpec`` of the engine.
        config: the draft's configuration, which the builders get.

    Raises:
        ValueError: a layer lies in no KV group.
    """
    members: dict[Any, dict[str, Any]] = {}
    for name, layer in layers.items():
        kv_group = kv_group_of(name, kv_cache_groups)
        spec = spec_of(name, kv_cache_groups[kv_group].kv_cache_spec)
        members.setdefault((kv_group, layer.get_attn_backend(), spec), {})[name] = layer
    return tuple(
        StateGroup(
            kv_group,
            STATE_KINDS[spec.mamba_type],
            backend.get_builder_cls()(spec, list(found), config, device),
            spec,
            found,
        )
        for (kv_group, backend, spec), found in members.items()
    )


class DraftStates:
    """The recurrent layers of a draft through one proposal after another.

    Args:
        groups: all of them.
        block_tables: the engine's, int32 [max requests, columns], for each of ``groups``.
        max_requests: most requests of a batch.
        speculative: K.
    """

    def __init__(
        self,
        groups: Sequence[StateGroup],
        block_tables: Sequence[torch.Tensor],
        max_requests: int,
        speculative: int,
    ) -> None:
        self.groups = tuple(groups)
        self.speculative = speculative
        self.requests = max_requests
        self._tables = list(block_tables)
        device = block_tables[0].device
        self._ones = torch.ones(max_requests, dtype=torch.int32, device=device)
        self._prefilling = torch.zeros(max_requests, dtype=torch.bool)
        self._taken = torch.ones(max_requests, dtype=torch.int64, device=device)
        self._caches: list[list[StateCaches]] = []
        alike: dict[Any, list[int]] = {}
        for index, group in enumerate(self.groups):
            alike.setdefault((type(group.builder), group.spec), []).append(index)
        self.needs = tuple(tuple(indices) for indices in alike.values())
        """Groups, by index, that one run of a builder serves."""

    def for_graph(self, groups: Sequence[StateGroup], requests: int) -> DraftStates:
        """The same for a graph of ``requests`` requests, with block tables of its own.

        Args:
            groups: the same as these, with builders of their own: a graph reads their buffers.
        """
        tables = [torch.zeros_like(table[:requests]) for table in self._tables]
        own = DraftStates(groups, tables, requests, self.speculative)
        own.bind()
        return own

    def follow(self, engine: DraftStates, live: torch.Tensor, rejected: torch.Tensor) -> None:
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
        self._taken.copy_((self.speculative + 1 - rejected).clamp_(min=1))

    def take_rows(self, engine: DraftStates, rows: torch.Tensor) -> None:
        """Take these rows (int64) of the engine's tables as the first rows of these."""
        for own, table in zip(self._tables, engine._tables, strict=True):
            own[: len(rows)] = table[rows]

    def again(self, metadata: Metadata, first_column: int) -> Metadata:
        """Metadata of recurrent layers, made again from the rows of the tables as they are now.

        Args:
            metadata: of a pass, by layer.
            first_column: of the block tables, in this pass.
        """
        made: Metadata = {}
        for need in self.needs:
            builder = self.groups[need[0]].builder
            for index in need:
                group, table = self.groups[index], self._tables[index][:, first_column:]
                built = metadata[next(iter(group.layers))]
                made.update(
                    dict.fromkeys(group.layers, group.kind.for_table(builder, built, table))
                )
        return made

    def bind(self) -> None:
        """Take the layers' caches, which must be allocated."""
        self._caches = [
            [group.kind.caches(layer) for layer in group.layers.values()] for group in self.groups
        ]

    def catch_up(self, common: Any, num_rejected: torch.Tensor | None) -> Metadata:
        """Metadata of the pass over the target's own rows; notes what is taken of each row.

        Args:
            common: common metadata of the pass: ``query_start_loc`` of B rows, ``seq_lens`` on the
                device with rejected tokens, an upper bound of them on the host.
            num_rejected: [B], tokens of each row that were rejected; None: none.
        """
        requests, longest = common.num_reqs, self.speculative + 1
        self._taken[:requests] = taken_tokens(
            common.query_start_loc, common.seq_lens, num_rejected, longest
        )
        rows = common.query_start_loc_cpu.diff()
        before = common.seq_lens_cpu_upper_bound[:requests] - rows
        token_by_token = (before > 0) & (rows <= longest)
        own = _of_rows(common, before == 0)
        row_lengths = torch.where(token_by_token, rows, 0).to(torch.int32)
        catch_up = CatchUp(row_lengths, self._ones[:requests])
        tables = [table[:requests] for table in self._tables]
        built = self._built(
            own, tables, lambda group: group.kind.catch_up(group.builder, own, catch_up)
        )
        metadata: Metadata = {}
        for group, of_group in built:
            finished = group.kind.finished(of_group, catch_up)
            metadata.update(dict.fromkeys(group.layers, finished))
        return metadata

    def _built(
        self, common: Any, tables: Sequence[torch.Tensor], build: Callable[[StateGroup], Any]
    ) -> Iterator[tuple[StateGroup, Any]]:
        """Each group with its metadata, built once where groups differ in their table alone."""
        for leader, *others in self.needs:
            group = self.groups[leader]
            common.block_table_tensor = tables[leader]
            built = build(group)
            # The leader's last: what the kernels want of it may be written into it.
            for index in others:
                metadata = group.kind.for_table(group.builder, built, tables[index])
                yield self.groups[index], metadata
            yield group, built

    def settle(self, requests: int) -> None:
        """After the pass over the target's rows: keep the states of what was accepted."""
        taken = self._taken[:requests]
        for caches, table in zip(self._caches, self._tables, strict=True):
            settle(caches, table[:requests], taken, self.speculative)

    def later_steps(self, common: Any) -> Metadata:
        """Metadata of every pass with one token per request; the same for all of them.

        Args:
            common: common metadata of such a pass.
        """
        requests = common.num_reqs
        own = _of_rows(common, self._prefilling[:requests])
        tables = [table[:requests, SCRATCH:] for table in self._tables]
        return {
            name: metadata
            for group, metadata in self._built(
                own, tables, lambda group: group.builder.build(0, own)
            )
            for name in group.layers
        }


def _of_rows(common: Any, begins: torch.Tensor) -> Any:
    """A copy of ``common`` for builders of recurrent layers.

    ``begins``: rows that begin a request. Builders treat what vLLM calls prefilling in ways that
    differ by the length of a row; only that a state is to be begun is left of it here.
    """
    own = shallow_copy(common)
    own.is_prefilling = begins
    own._num_computed_tokens_cache = None
    return own
