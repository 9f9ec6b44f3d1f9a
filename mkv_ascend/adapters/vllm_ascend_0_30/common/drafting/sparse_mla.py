# SPDX-License-Identifier: Apache-2.0
"""Sparse MLA. Its indexer is a layer with a builder of its own here.

Where ranks share each sequence (decode context parallelism), each rank keeps its share of the
latents, and all keys of the indexer. A block of the indexer has the tokens of all ranks' blocks
with its id. So a draft's plan has slots of whole sequences, which are the indexer's, and a rank's
own slots are made from them here.

Builders of vllm-ascend make tables, slots and lengths by launches there, in buffers of their own,
where one pass would overwrite another one's. So each pass gets copies of what its builder made, and
in graphs builders run in each replay.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm_ascend.ascend_config import get_ascend_config
from vllm_ascend.attention.context_parallel.sfa_cp import AscendSFADCPImpl
from vllm_ascend.attention.sfa_v1 import AscendSFAMetadataBuilder

from mkv_ascend.adapters.common.attention.rope_tables import RopeTables
from mkv_ascend.adapters.common.backends.mla import GatheredRows
from mkv_ascend.adapters.common.backends.sparse_mla import SparseMLA
from mkv_ascend.adapters.common.drafting.kinds_of_drafts import shares_of_builder
from mkv_ascend.drafting.draft import LaterPasses, shallow_copy


class SparseMLAWithoutIndexer(SparseMLA):
    """Sparse MLA without its indexer."""

    @classmethod
    def serves(cls, builder: Any, of_layers: type[Any] | None) -> bool:
        """No for builders that split rows over ranks, or that have no rotary rows."""
        split = type(builder)._prepare_parallel_metadata
        return split is AscendSFAMetadataBuilder._prepare_parallel_metadata and not builder.nope


class Indexer(SparseMLA):
    """The indexer of sparse MLA: its keys lie beside those of its layer, under the same rows."""

    @classmethod
    def serves(cls, builder: Any, of_layers: type[Any] | None) -> bool:
        """No if the builder splits rows over ranks or sorts slots, by launches of its own."""
        split = builder.use_pcp or builder.use_dsa_cp
        return not (split or get_ascend_config().c8_reshape_optim_enabled)

    def cos_sin_rows(
        self, first: torch.Tensor | None, later: torch.Tensor | None
    ) -> GatheredRows | None:
        """None of its own; it is given those of its layer's metadata."""
        return None

    def run_without_rows(self, common: Any, draft_index: int) -> Any:
        with RopeTables().with_deferred_rows():
            return self.builder._build(common, None, use_cached_rope=True, copy_rope=False)

    def for_later_passes(self, built: Any, later: LaterPasses, rows: GatheredRows) -> list[Any]:
        """Keys are counted by a name of their own."""
        made = super().for_later_passes(built, later, rows)
        for other in made:
            other.actual_seq_lengths_key = other.seq_lens
        return made


def complete(built: Any, common: Any, draft_index: int, cos_sin: GatheredRows) -> None:
    """Give ``built`` the rows of its pass, a table of its own and slots of whole sequences.

    Builders make slots from positions. Rows behind the longest sequence have position 0, and would
    write over the first key.
    """
    if draft_index:
        built.cos, built.sin = cos_sin.for_pass(draft_index - 1, common.num_reqs)
    else:
        built.cos, built.sin = cos_sin.cosines[: cos_sin.first], cos_sin.sines[: cos_sin.first]
    slots, whole = common.slot_mapping, built.slot_mapping.clone()
    whole[: slots.shape[0]] = slots
    built.slot_mapping, built.block_table = whole, built.block_table.clone()


class SparseMLAOfShares(SparseMLAWithoutIndexer):
    """Sparse MLA over this rank's share: a prefill counts the blocks that ranks collect."""

    shares = False
    builds_in_graphs = True
    implementation = AscendSFADCPImpl
    prefills: str | None = "a prefill, and decodes"

    def run(self, common: Any, draft_index: int, rows: GatheredRows) -> Any:
        shares = shares_of_builder(self.builder)
        own = shallow_copy(common)
        own.slot_mapping = shares.own_slots(common.slot_mapping, self.builder.kernel_block_size)
        # It has the target's rows.
        own.context_parallel_metadata = None
        own.dcp_local_seq_lens = shares.own_lengths(common.seq_lens[: common.num_reqs])
        if draft_index:
            # Behind a prompt, too: all rows are decodes of one token.
            own.is_prefilling = torch.zeros(common.num_reqs, dtype=torch.bool)
        built = self.run_without_rows(own, draft_index)
        complete(built, common, draft_index, rows)
        built.dcp_context.seq_lens = built.dcp_context.seq_lens.clone()
        return built


class IndexerOfShares(Indexer):
    """The indexer where ranks share sequences."""

    shares = False
    builds_in_graphs = True

    @classmethod
    def serves(cls, builder: Any, of_layers: type[Any] | None) -> bool:
        return builder.use_dcp and super().serves(builder, of_layers)

    def run(self, common: Any, draft_index: int, rows: GatheredRows) -> Any:
        built = self.run_without_rows(common, draft_index)
        complete(built, common, draft_index, rows)
        return built
