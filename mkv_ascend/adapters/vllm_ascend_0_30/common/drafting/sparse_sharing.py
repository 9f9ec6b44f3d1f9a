# SPDX-License-Identifier: Apache-2.0
"""How metadata of sparse MLA is shared. Its indexer is a layer with a builder of its own here."""

from __future__ import annotations

from typing import Any

import torch
from vllm_ascend.ascend_config import get_ascend_config
from vllm_ascend.attention.sfa_v1 import AscendSFAMetadataBuilder

from mkv_ascend.adapters.common.attention.rope_tables import RopeTables
from mkv_ascend.adapters.common.drafting.sharing import GatheredRows, SparseMLASharing
from mkv_ascend.drafting.draft import LaterPasses


class SparseSharing(SparseMLASharing):
    """Sparse MLA without its indexer."""

    def serves(self, builder: Any) -> bool:
        """No for builders that split rows over ranks, or that have no rotary rows."""
        split = type(builder)._prepare_parallel_metadata
        return split is AscendSFAMetadataBuilder._prepare_parallel_metadata and not builder.nope


class IndexerSharing(SparseMLASharing):
    """The indexer of sparse MLA: its keys lie beside those of its layer, under the same rows."""

    def serves(self, builder: Any) -> bool:
        """No if the builder splits rows over ranks or sorts slots, by launches of its own."""
        split = builder.use_pcp or builder.use_dsa_cp
        return not (split or get_ascend_config().c8_reshape_optim_enabled)

    def cos_sin_rows(
        self, builder: Any, first: torch.Tensor | None, later: torch.Tensor | None
    ) -> GatheredRows | None:
        """None of its own; it is given those of its layer's metadata."""
        return None

    def run(self, builder: Any, common: Any, draft_index: int) -> Any:
        """Run the builder, which selects no rows of cosines and sines then."""
        with RopeTables().with_deferred_rows():
            return builder._build(common, None, use_cached_rope=True, copy_rope=False)

    def for_later_passes(
        self, built: Any, later: LaterPasses, cos_sin: GatheredRows | None
    ) -> list[Any]:
        """See ``Sharing``; keys are counted by a name of their own."""
        made = super().for_later_passes(built, later, cos_sin)
        for other in made:
            other.actual_seq_lengths_key = other.seq_lens
        return made
