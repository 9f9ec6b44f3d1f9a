# SPDX-License-Identifier: Apache-2.0
"""Metadata of sparse MLA in a draft's passes, also where ranks share each sequence."""

from __future__ import annotations

from typing import Any

import torch
from vllm_ascend.ascend_config import get_ascend_config
from vllm_ascend.attention.context_parallel.sfa_cp import AscendSFADCPImpl
from vllm_ascend.attention.sfa_v1 import AscendSFAMetadataBuilder

from mkv_ascend.adapters.common.attention.backends import rope_tables_of
from mkv_ascend.adapters.common.attention.rope_tables import RopeTables
from mkv_ascend.adapters.common.drafting.capture_adapters import (
    CAPTURE_ADAPTERS,
    WindowOfKeysCapture,
)
from mkv_ascend.adapters.common.drafting.sharing import GatheredRows, SparseMLASharing, run_builder
from mkv_ascend.drafting.context_shares import ContextShares
from mkv_ascend.drafting.copying import shallow_copy
from mkv_ascend.drafting.draft import LaterPasses

# How metadata of sparse MLA is shared. Its indexer is a layer with a builder of its own here.


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


# Metadata of sparse MLA's passes where ranks share each sequence (decode context parallelism).
#
# Each rank keeps its share of the latents, and all keys of the indexer. A block of the indexer
# has the tokens of all ranks' blocks with its id. So a draft's plan has slots of whole sequences,
# which are the indexer's, and a rank's own slots are made from them here.
#
# Builders of vllm-ascend make tables, slots and lengths by launches, in buffers of their own,
# where one pass would overwrite another one's. So each pass gets copies of what its builder made,
# and in graphs builders run in each replay.


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


class SparseOfShares(SparseMLASharing):
    """Sparse MLA over this rank's share."""

    shares = False
    builds_in_graphs = True

    def __init__(self, shares: ContextShares) -> None:
        self._shares = shares

    def serves(self, builder: Any) -> bool:
        """See ``SparseSharing``."""
        return SparseSharing().serves(builder)

    def build(
        self, builder: Any, common: Any, draft_index: int, cos_sin: GatheredRows | None
    ) -> Any:
        """See ``Sharing``."""
        assert cos_sin is not None
        tables = rope_tables_of(builder)
        assert tables is not None, "layers of a draft have builders bound to it"
        own = shallow_copy(common)
        own.slot_mapping = self._shares.own_slots(common.slot_mapping, builder.kernel_block_size)
        # It has the target's rows.
        own.context_parallel_metadata = None
        own.dcp_local_seq_lens = self._shares.own_lengths(common.seq_lens[: common.num_reqs])
        if draft_index:
            # Behind a prompt, too: all rows are decodes of one token.
            own.is_prefilling = torch.zeros(common.num_reqs, dtype=torch.bool)
        with tables.with_deferred_rows():
            built = run_builder(builder, own, draft_index)
        complete(built, common, draft_index, cos_sin)
        built.dcp_context.seq_lens = built.dcp_context.seq_lens.clone()
        return built


class IndexerOfShares(IndexerSharing):
    """The indexer where ranks share sequences."""

    shares = False
    builds_in_graphs = True

    def build(
        self, builder: Any, common: Any, draft_index: int, cos_sin: GatheredRows | None
    ) -> Any:
        """See ``Sharing``."""
        assert cos_sin is not None
        built = self.run(builder, common, draft_index)
        complete(built, common, draft_index, cos_sin)
        return built


class SparseOfSharesCapture(WindowOfKeysCapture):
    """Sparse MLA over this rank's share: a prefill counts the blocks that ranks collect."""


CAPTURE_ADAPTERS[AscendSFADCPImpl] = SparseOfSharesCapture()
