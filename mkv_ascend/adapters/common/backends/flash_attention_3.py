# SPDX-License-Identifier: Apache-2.0
"""flash_attention_3 with the whole batch in one call.

vllm-ascend 0.23.0 calls ``flash_attn_with_kvcache`` once for decodes, without a causal mask, and
once for prefills, with block tables cut at the number of decode *tokens* and query offsets that do
not start at 0. That is right only if every decode has one token. So it is wrong for verify steps
and for a draft's first pass.

The operator takes mixed batches directly: queries by ``cu_seqlens_q``, keys by ``page_table``
and ``cache_seqlens``, the causal mask aligned to the last key of each request (flash-attention 3,
documentation of ``flash_attn_with_kvcache``).
"""

from __future__ import annotations

import functools
from collections.abc import Hashable
from typing import Any

import torch

from mkv_ascend.adapters.common.attention.derived import derive
from mkv_ascend.adapters.common.backends.dense import Dense
from mkv_ascend.adapters.patching import record
from mkv_ascend.drafting.draft import LaterPasses

FORWARD = record(
    name="flash_attention_3 takes the whole batch",
    target="vllm_ascend.attention.fa3_v1:AscendFAImpl.forward_impl",
    reads=("vllm_ascend.attention.fa3_v1:AscendFAImpl._flash_attn_with_kvcache",),
)


@functools.cache
def implementation(base: type[Any]) -> type[Any]:
    """vllm-ascend's implementation ``base`` with ``forward_impl`` replaced."""
    return derive(base, "", {"forward_impl": _forward}, FORWARD)


def _forward(
    self: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    kv_cache: Any,
    attn_metadata: Any,
    output: torch.Tensor,
) -> torch.Tensor:
    """Attend for all requests. query, output [tokens, heads, head_size], tokens may be padded.

    Lengths of later passes of a draft are on the device already.
    """
    requests = len(attn_metadata.actual_seq_lengths_q)
    tokens = attn_metadata.actual_seq_lengths_q[-1]
    output[:tokens] = self._flash_attn_with_kvcache(
        query[:tokens],
        attn_metadata.block_tables[:requests],
        attn_metadata.query_start_loc[: requests + 1],
        attn_metadata.seq_lens[:requests].to(query.device),
        attn_metadata.causal,
        attn_metadata.max_query_len,
    )
    return output


class FlashAttention3(Dense):
    """Has the builder of fused_infer_attention; lengths of later passes stay on the device."""

    reads_host_lengths = False
    implementation = None

    @classmethod
    def serves(cls, builder: Any, of_layers: type[Any] | None) -> bool:
        """Whether the layers' implementation is the one above."""
        return getattr(of_layers, "forward_impl", None) is _forward

    def reads(self, spec: Any) -> Hashable:
        """Metadata is not that of fused_infer_attention."""
        return "flash_attention_3", super().reads(spec)

    def for_later_passes(self, built: Any, later: LaterPasses, rows: Any) -> list[Any]:
        """A list of lengths would have to be copied to the host."""
        made = super().for_later_passes(built, later, rows)
        for other, lengths in zip(made, later.lengths, strict=True):
            other.seq_lens, other.seq_lens_cpu, other.seq_lens_list = lengths, None, None
        return made
