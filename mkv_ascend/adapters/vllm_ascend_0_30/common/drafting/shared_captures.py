# SPDX-License-Identifier: Apache-2.0
"""Captured launches of attention where ranks share each sequence (decode context parallelism).

A pass with several rows of a request launches twice in each layer: what the rank has of the keys
before the pass, and the pass's own rows. A pass of one row launches once. Each launch takes lengths
of this rank on the host.
"""

from __future__ import annotations

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

from mkv_ascend.adapters.common.drafting.capture_adapters import (
    CAPTURE_ADAPTERS,
    CaptureAdapter,
    MLACapture,
)
from mkv_ascend.drafting.context_shares import ContextShares
from mkv_ascend.drafting.copying import shallow_copy


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
