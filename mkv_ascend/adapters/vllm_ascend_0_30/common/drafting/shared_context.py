# SPDX-License-Identifier: Apache-2.0
"""Where ranks share each sequence (decode context parallelism): metadata and captured launches."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from vllm_ascend.attention.context_parallel.attention_cp import (
    AscendAttentionDCPImpl,
    AscendAttentionDCPMetadataBuilder,
    DCPFIAParamProvider,
)
from vllm_ascend.attention.context_parallel.common_cp import (
    CPKVScope,
    use_history_current_split_decode,
)
from vllm_ascend.attention.context_parallel.mla_cp import (
    AscendMlaDCPImpl,
    AscendMlaDCPMetadataBuilder,
)
from vllm_ascend.attention.context_parallel.sfa_cp import AscendSFADCPMetadataBuilder
from vllm_ascend.attention.indexer import AscendSFAIndexerMetadataBuilder

from mkv_ascend.adapters.common.drafting.capture_adapters import (
    CAPTURE_ADAPTERS,
    CaptureAdapter,
    MLACapture,
)
from mkv_ascend.adapters.common.drafting.context_shares import shares_of_builder
from mkv_ascend.adapters.common.drafting.sharing import GatheredRows, MLASharing, Sharing
from mkv_ascend.adapters.vllm_ascend_0_30.common.drafting.sparse import (
    IndexerOfShares,
    SparseOfShares,
)
from mkv_ascend.drafting.context_shares import ContextShares
from mkv_ascend.drafting.copying import shallow_copy
from mkv_ascend.drafting.draft import HostLengths, LaterPasses

# Metadata of a draft's passes where ranks share each sequence (decode context parallelism).
#
# vllm-ascend 0.30.0rc2's builders take lengths of this rank's share from common metadata, which
# its runner makes for the target's pass. They split what was cached before a pass from the pass's
# own rows, to which each rank attends as a whole. So no row needs a mask over a rank's keys, and
# a pass needs lengths alone: each gets those of its own here.

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


# Captured launches of attention where ranks share each sequence (decode context parallelism).
#
# A pass with several rows of a request launches twice in each layer: what the rank has of the
# keys before the pass, and the pass's own rows. A pass of one row launches once. Each launch
# takes lengths of this rank on the host.


class SharesCapture(CaptureAdapter):
    """What is common to backends over this rank's share.

    Args:
        shares: of the layer that it is for; None for all layers of a class.
    """

    def __init__(self, shares: ContextShares | None = None) -> None:
        self._shares = shares

    def of_layer(self, implementation: Any) -> CaptureAdapter:
        """See ``CaptureAdapter``; it knows the shares then."""
        parallel = implementation.vllm_config.parallel_config
        interleave = parallel.cp_kv_cache_interleave_size
        ranks = implementation.dcp_size, implementation.dcp_rank
        return type(self)(ContextShares(*ranks, interleave))

    def why_not(self, queries: int, builder: Any, *, known: bool = True) -> str | None:
        """A reason if the rows of a request count as a prefill, which is no task of a graph."""
        most = builder.decode_threshold
        if queries <= most:
            return None
        return f"a request's {queries} tokens are a prefill, and decodes have {most}"

    def tokens(self, metadata: Any) -> int:
        """Queries of its decodes; there are no others."""
        return super().tokens(metadata.decode)

    def launches(self, metadata: Any) -> int:
        """See ``CaptureAdapter``."""
        return 2 if use_history_current_split_decode(metadata, is_draft_model=True) else 1

    def with_lengths(self, metadata: Any, lengths: list[int]) -> Any:
        """As for the base class; lengths are whole sequences', and launches take this rank's."""
        shares = self._shares
        assert shares is not None, "it was made for a layer"
        given = shallow_copy(metadata)
        decode = given.decode = super().with_lengths(metadata.decode, lengths)
        whole = torch.tensor(lengths, dtype=torch.int32)
        decode.update_dcp_seq_lens_cpu(
            whole,
            shares.own_lengths(whole),
            torch.tensor([0, *decode.actual_seq_lengths_q], dtype=torch.int32).diff(),
            dcp_size=shares.ranks,
            dcp_rank=shares.rank,
            cp_kv_cache_interleave_size=shares.interleave,
        )
        return given


class MLASharesCapture(SharesCapture):
    """MLA, which notes its launches in a table."""

    has_sinks = MLACapture.has_sinks


CAPTURE_ADAPTERS[AscendAttentionDCPImpl] = SharesCapture()
CAPTURE_ADAPTERS[AscendMlaDCPImpl] = MLASharesCapture()


def layer_of(provider: Any) -> tuple[str, bool]:
    """The layer of a task, and whether the layer's part in its pass ends with this task."""
    if isinstance(provider, DCPFIAParamProvider):
        assert provider.metadata_layer_name is not None, "layers of a draft have names"
        return provider.metadata_layer_name, provider.attention_kind is not CPKVScope.HISTORY
    name: str = provider.layer_name
    return name, True
