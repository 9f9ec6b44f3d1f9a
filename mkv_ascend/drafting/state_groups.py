# SPDX-License-Identifier: Apache-2.0
"""A draft's recurrent layers: which share a block table and metadata, and what a proposal does
with them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
        self._tables = list(block_tables)
        device = block_tables[0].device
        self._ones = torch.ones(max_requests, dtype=torch.int32, device=device)
        self._prefilling = torch.zeros(max_requests, dtype=torch.bool)
        self._taken = torch.ones(max_requests, dtype=torch.int64, device=device)
        self._caches: list[list[StateCaches]] = []

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
        metadata: Metadata = {}
        for group, table in zip(self.groups, self._tables, strict=True):
            own.block_table_tensor = table[:requests]
            built = group.kind.catch_up(group.builder, own, catch_up)
            metadata.update(dict.fromkeys(group.layers, built))
        return metadata

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
        metadata: Metadata = {}
        for group, table in zip(self.groups, self._tables, strict=True):
            own.block_table_tensor = table[:requests, SCRATCH:]
            built = group.builder.build(0, own)
            metadata.update(dict.fromkeys(group.layers, built))
        return metadata


def _of_rows(common: Any, begins: torch.Tensor) -> Any:
    """A copy of ``common`` for builders of recurrent layers.

    ``begins``: rows that begin a request. Builders treat what vLLM calls prefilling in ways that
    differ by the length of a row; only that a state is to be begun is left of it here.
    """
    own = shallow_copy(common)
    own.is_prefilling = begins
    own._num_computed_tokens_cache = None
    return own
