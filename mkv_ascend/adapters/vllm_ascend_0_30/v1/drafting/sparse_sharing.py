# SPDX-License-Identifier: Apache-2.0
"""How metadata of sparse MLA is shared. Its indexer is a layer with a builder of its own here."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch
from vllm_ascend.ascend_config import get_ascend_config
from vllm_ascend.attention.sfa_v1 import AscendSFAMetadataBuilder

from mkv_ascend.adapters.common.attention.rope_tables import RopeTables
from mkv_ascend.adapters.common.drafting.sharing import (
    GatheredRows,
    Sharing,
    SparseMLASharing,
    host_zeros,
)
from mkv_ascend.drafting.copying import shallow_copy
from mkv_ascend.drafting.draft import HostLengths
from mkv_ascend.drafting.plan import LaterPasses


class SparseSharing(SparseMLASharing):
    """Sparse MLA without its indexer."""

    def serves(self, builder: Any) -> bool:
        """No for builders that split rows over ranks, or that have no rotary rows."""
        split = type(builder)._prepare_parallel_metadata
        return split is AscendSFAMetadataBuilder._prepare_parallel_metadata and not builder.nope


class IndexerSharing(Sharing):
    """The indexer of sparse MLA: its keys lie beside those of its layer, under the same rows."""

    def serves(self, builder: Any) -> bool:
        """No if the builder splits rows over ranks or sorts slots, by launches of its own."""
        split = builder.use_dcp or builder.use_pcp or builder.use_dsa_cp
        return not (split or get_ascend_config().c8_reshape_optim_enabled)

    def reads(self, spec: Any) -> Hashable:
        """See ``Sharing``."""
        hashable: Hashable = spec
        return hashable

    def build(
        self, builder: Any, common: Any, draft_index: int, cos_sin: GatheredRows | None
    ) -> Any:
        """Build without rows of cosines and sines; they are those of the layers' own metadata."""
        assert cos_sin is not None, "the layers of an indexer have such rows"
        own = shallow_copy(common)
        own.positions = host_zeros(common.num_input_tokens)
        with RopeTables().with_deferred_rows():
            built = builder._build(own, None, use_cached_rope=True, copy_rope=False)
        if draft_index == 0:
            built.cos, built.sin = cos_sin.cosines[: cos_sin.first], cos_sin.sines[: cos_sin.first]
        return built

    def block_table(self, built: Any) -> torch.Tensor:
        """See ``Sharing``."""
        table: torch.Tensor = built.block_table
        return table

    def for_group(self, built: Any, table: torch.Tensor, slots: torch.Tensor) -> Any:
        """See ``Sharing``."""
        other = shallow_copy(built)
        other.block_table, other.slot_mapping = table, slots
        return other

    def for_later_passes(
        self, built: Any, later: LaterPasses, cos_sin: GatheredRows | None
    ) -> list[Any]:
        """See ``Sharing``; lengths are read on the device."""
        assert cos_sin is not None
        made = []
        for index, lengths in enumerate(later.lengths):
            other = shallow_copy(built)
            other.seq_lens = other.actual_seq_lengths_key = lengths
            other.cos, other.sin = cos_sin.for_pass(index, lengths.shape[0])
            made.append(other)
        return made

    def set_lengths(self, built: Any, lengths: HostLengths) -> None:
        """See ``Sharing``; there are none on the host."""
