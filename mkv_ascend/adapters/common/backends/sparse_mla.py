# SPDX-License-Identifier: Apache-2.0
"""Sparse MLA: one metadata object for prefills and decodes, with lengths on the device."""

from __future__ import annotations

from typing import Any

import torch
from vllm_ascend.attention.sfa_v1 import AscendSFAImpl

from mkv_ascend.adapters.common.attention.rope_tables import rope_tables_of
from mkv_ascend.adapters.common.backends.mla import MLA, GatheredRows, host_zeros
from mkv_ascend.adapters.common.backends.port import run_builder
from mkv_ascend.drafting.draft import LaterPasses, shallow_copy


class SparseMLA(MLA):
    """Sparse MLA; a host says which of its builders' metadata can be shared."""

    reads_host_lengths = False
    implementation = AscendSFAImpl
    prefills: str | None = None
    unserved = "its rows are split over ranks, or its slots sorted, for each pass anew"

    def run(self, common: Any, draft_index: int, rows: GatheredRows) -> Any:
        """Build without selecting rows of cosines and sines; see ``for_later_passes``."""
        own = shallow_copy(common)
        # On the host and int64 already, because the builder converts them.
        own.positions = host_zeros(common.num_input_tokens)
        built = self.run_without_rows(own, draft_index)
        if draft_index == 0:
            built.cos, built.sin = rows.cosines[: rows.first], rows.sines[: rows.first]
        return built

    def run_without_rows(self, common: Any, draft_index: int) -> Any:
        """Run the builder, which selects no rows of cosines and sines then."""
        with rope_tables_of(self.builder).with_deferred_rows():
            return run_builder(self.builder, common, draft_index)

    def block_table(self, built: Any) -> torch.Tensor:
        table: torch.Tensor = built.block_table
        return table

    def for_group(self, built: Any, slots: torch.Tensor, table: torch.Tensor) -> Any:
        other = shallow_copy(built)
        other.block_table, other.slot_mapping = table, slots
        return other

    def for_later_passes(self, built: Any, later: LaterPasses, rows: GatheredRows) -> list[Any]:
        made = []
        for index, lengths in enumerate(later.lengths):
            other = shallow_copy(built)
            # Nothing reads those on the host: they are not copied there.
            other.seq_lens, other.seq_lens_cpu = lengths, None
            other.cos, other.sin = rows.for_pass(index, lengths.shape[0])
            made.append(other)
        return made
