# SPDX-License-Identifier: Apache-2.0
"""Metadata of a draft's passes where ranks share each sequence (decode context parallelism).

vllm-ascend 0.30.0rc2's builders take lengths of this rank's share from common metadata, which its
runner makes for the target's pass. They split what was cached before a pass from the pass's own
rows, to which each rank attends as a whole. So no row needs a mask over a rank's keys, and a pass
needs lengths alone: each gets those of its own here.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from vllm_ascend.attention.context_parallel.attention_cp import AscendAttentionDCPMetadataBuilder
from vllm_ascend.attention.context_parallel.mla_cp import AscendMlaDCPMetadataBuilder
from vllm_ascend.attention.context_parallel.sfa_cp import AscendSFADCPMetadataBuilder
from vllm_ascend.attention.indexer import AscendSFAIndexerMetadataBuilder

from mkv_ascend.adapters.common.drafting.context_shares import shares_of_builder
from mkv_ascend.adapters.common.drafting.sharing import GatheredRows, MLASharing, Sharing
from mkv_ascend.adapters.vllm_ascend_0_30.common.drafting.sparse_shares import (
    IndexerOfShares,
    SparseOfShares,
)
from mkv_ascend.drafting.context_shares import ContextShares
from mkv_ascend.drafting.copying import shallow_copy
from mkv_ascend.drafting.draft import HostLengths, LaterPasses

OF_SHARES = (
    AscendAttentionDCPMetadataBuilder,
    AscendMlaDCPMetadataBuilder,
    AscendSFADCPMetadataBuilder,
)
"""Builders over a rank's share of each sequence."""


class OfShares(Sharing):
    """What is common to backends over this rank's share."""

    def __init__(self, shares: ContextShares) -> None:
        self._shares = shares

    def build(
        self, builder: Any, common: Any, draft_index: int, cos_sin: GatheredRows | None
    ) -> Any:
        """See ``Sharing``."""
        requests, prefilling = common.num_reqs, common.is_prefilling
        if draft_index:
            # Behind a prompt, too: all rows are decodes of one token.
            prefilling = torch.zeros(requests, dtype=torch.bool)
        own = dataclasses.replace(
            common,
            # It has the target's rows.
            context_parallel_metadata=None,
            dcp_local_seq_lens=self._shares.own_lengths(common.seq_lens[:requests]),
            dcp_local_seq_lens_cpu=self._shares.own_lengths(common.seq_lens_cpu[:requests]),
            is_prefilling=prefilling,
        )
        return super().build(builder, own, draft_index, cos_sin)

    def set_lengths(self, built: Any, lengths: HostLengths) -> None:
        """See ``Sharing``; a later pass has one row of each request."""
        super().set_lengths(built, lengths)
        built.decode.update_dcp_seq_lens_cpu(
            lengths.tensor,
            self._shares.own_lengths(lengths.tensor),
            torch.ones_like(lengths.tensor),
            dcp_size=self._shares.ranks,
            dcp_rank=self._shares.rank,
            cp_kv_cache_interleave_size=self._shares.interleave,
        )


def _with_lengths_on(device: torch.device, prefill: Any) -> Any:
    """``prefill`` with the lengths of what was cached before it on ``device``."""
    cached = None if prefill is None else prefill.chunked_context
    if cached is None:
        return prefill
    lengths = cached.local_context_lens.to(device, non_blocking=True)
    return dataclasses.replace(
        prefill, chunked_context=dataclasses.replace(cached, local_context_lens=lengths)
    )


class DenseOfShares(OfShares):
    """fused_infer_attention over this rank's share."""

    def build(
        self, builder: Any, common: Any, draft_index: int, cos_sin: GatheredRows | None
    ) -> Any:
        """See ``Sharing``.

        With parallel drafting the builder takes lengths on the host. Behind a prompt's chunk it
        subtracts starts, too, which are on the device.
        """
        if common.seq_lens.device == common.query_start_loc.device:
            return super().build(builder, common, draft_index, cos_sin)
        own = shallow_copy(common)
        own.query_start_loc = common.query_start_loc_cpu
        built = super().build(builder, own, draft_index, cos_sin)
        return dataclasses.replace(built, prefill=_with_lengths_on(builder.device, built.prefill))

    def for_group(self, built: Any, table: torch.Tensor, slots: torch.Tensor) -> Any:
        """See ``Sharing``; decodes and prefills have tables of their own."""
        other = super().for_group(built, table, slots)
        decodes = built.num_decodes
        if built.decode is not None:
            other.decode = shallow_copy(built.decode)
            other.decode.block_tables = table[:decodes]
        if built.prefill is not None:
            other.prefill = shallow_copy(built.prefill)
            other.prefill.block_tables = table[decodes:]
        return other

    def for_later_passes(
        self, built: Any, later: LaterPasses, cos_sin: GatheredRows | None
    ) -> list[Any]:
        """See ``Sharing``."""
        made = super().for_later_passes(built, later, cos_sin)
        for other in made:
            other.decode = shallow_copy(built.decode)
        return made


class MLAOfShares(OfShares, MLASharing):
    """MLA over this rank's share."""


def sharing_of_shares(builder: Any) -> dict[type[Any], Sharing]:
    """Builder class -> how its metadata is made, if this builder is one under such parallelism."""
    if isinstance(builder, AscendSFAIndexerMetadataBuilder):
        return {type(builder): IndexerOfShares()} if builder.use_dcp else {}
    if not isinstance(builder, OF_SHARES):
        return {}
    shares = shares_of_builder(builder)
    return {
        AscendAttentionDCPMetadataBuilder: DenseOfShares(shares),
        AscendMlaDCPMetadataBuilder: MLAOfShares(shares),
        AscendSFADCPMetadataBuilder: SparseOfShares(shares),
    }
