# SPDX-License-Identifier: Apache-2.0
"""Backends of a draft's passes where ranks share each sequence (decode context parallelism).

vllm-ascend 0.30.0rc2's builders take lengths of this rank's share from common metadata, which its
runner makes for the target's pass. They split what was cached before a pass from the pass's own
rows, to which each rank attends as a whole. So no row needs a mask over a rank's keys, and a pass
needs lengths alone: each gets those of its own here.

A pass with several rows of a request launches twice in each layer: what the rank has of the keys
before the pass, and the pass's own rows. A pass of one row launches once. Each launch takes lengths
of this rank on the host.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from vllm_ascend.attention.context_parallel.attention_cp import (
    AscendAttentionDCPImpl,
    DCPFIAParamProvider,
)
from vllm_ascend.attention.context_parallel.common_cp import (
    CPKVScope,
    use_history_current_split_decode,
)
from vllm_ascend.attention.context_parallel.mla_cp import AscendMlaDCPImpl

from mkv_ascend.adapters.common.backends.dense import Dense
from mkv_ascend.adapters.common.backends.mla import MLA
from mkv_ascend.adapters.common.drafting.kinds_of_drafts import shares_of_builder
from mkv_ascend.drafting.draft import HostLengths, LaterPasses, shallow_copy


class OfShares(Dense):
    """What is common to backends over this rank's share."""

    prefills: str | None = "a prefill, and decodes"

    def run(self, common: Any, draft_index: int, rows: Any) -> Any:
        requests, prefilling = common.num_reqs, common.is_prefilling
        if draft_index:
            # Behind a prompt, too: all rows are decodes of one token.
            prefilling = torch.zeros(requests, dtype=torch.bool)
        shares = shares_of_builder(self.builder)
        own = dataclasses.replace(
            common,
            # It has the target's rows.
            context_parallel_metadata=None,
            dcp_local_seq_lens=shares.own_lengths(common.seq_lens[:requests]),
            dcp_local_seq_lens_cpu=shares.own_lengths(common.seq_lens_cpu[:requests]),
            is_prefilling=prefilling,
        )
        return super().run(own, draft_index, rows)

    def set_lengths(self, built: Any, lengths: HostLengths) -> None:
        """A later pass has one row of each request."""
        super().set_lengths(built, lengths)
        self._set_decode_lengths(built.decode, lengths.tensor, torch.ones_like(lengths.tensor))

    def _set_decode_lengths(self, decode: Any, whole: torch.Tensor, rows: torch.Tensor) -> None:
        """Write what launches take: this rank's lengths, from whole sequences' int32 [B].

        ``rows``: int32 [B], rows of each request.
        """
        shares = shares_of_builder(self.builder)
        decode.update_dcp_seq_lens_cpu(
            whole,
            shares.own_lengths(whole),
            rows,
            dcp_size=shares.ranks,
            dcp_rank=shares.rank,
            cp_kv_cache_interleave_size=shares.interleave,
        )

    def tokens(self, metadata: Any) -> int:
        """Queries of its decodes; there are no others."""
        return Dense.tokens(self, metadata.decode)

    def launches(self, metadata: Any) -> int:
        return 2 if use_history_current_split_decode(metadata, is_draft_model=True) else 1

    def with_lengths(self, metadata: Any, lengths: list[int]) -> Any:
        """Lengths are whole sequences', and launches take this rank's."""
        given = shallow_copy(metadata)
        decode = given.decode = Dense.with_lengths(self, metadata.decode, lengths)
        rows = torch.tensor([0, *decode.actual_seq_lengths_q], dtype=torch.int32).diff()
        self._set_decode_lengths(decode, torch.tensor(lengths, dtype=torch.int32), rows)
        return given


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

    implementation = AscendAttentionDCPImpl

    def run(self, common: Any, draft_index: int, rows: Any) -> Any:
        """With parallel drafting the builder takes lengths on the host.

        Behind a prompt's chunk it subtracts starts, too, which are on the device.
        """
        if common.seq_lens.device == common.query_start_loc.device:
            return super().run(common, draft_index, rows)
        own = shallow_copy(common)
        own.query_start_loc = common.query_start_loc_cpu
        built = super().run(own, draft_index, rows)
        prefill = _with_lengths_on(self.builder.device, built.prefill)
        return dataclasses.replace(built, prefill=prefill)

    def for_group(self, built: Any, slots: torch.Tensor, table: torch.Tensor) -> Any:
        """Decodes and prefills have tables of their own."""
        other = super().for_group(built, slots, table)
        decodes = built.num_decodes
        if built.decode is not None:
            other.decode = shallow_copy(built.decode)
            other.decode.block_tables = table[:decodes]
        if built.prefill is not None:
            other.prefill = shallow_copy(built.prefill)
            other.prefill.block_tables = table[decodes:]
        return other

    def for_later_passes(self, built: Any, later: LaterPasses, rows: Any) -> list[Any]:
        made = super().for_later_passes(built, later, rows)
        for other in made:
            other.decode = shallow_copy(built.decode)
        return made


class MLAOfShares(OfShares, MLA):
    """MLA over this rank's share, which notes its launches in a table."""

    implementation = AscendMlaDCPImpl


def layer_of(provider: Any) -> tuple[str, bool]:
    """The layer of a task, and whether the layer's part in its pass ends with this task."""
    if isinstance(provider, DCPFIAParamProvider):
        assert provider.metadata_layer_name is not None, "layers of a draft have names"
        return provider.metadata_layer_name, provider.attention_kind is not CPKVScope.HISTORY
    name: str = provider.layer_name
    return name, True
