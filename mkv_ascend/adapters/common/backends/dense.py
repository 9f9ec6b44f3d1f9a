# SPDX-License-Identifier: Apache-2.0
"""fused_infer_attention, which takes lengths on the host."""

from __future__ import annotations

from typing import Any

import torch
from vllm_ascend.attention.attention_v1 import AscendAttentionBackendImpl

from mkv_ascend.adapters.common.backends.port import Backend, run_builder
from mkv_ascend.drafting.draft import HostLengths, LaterPasses, shallow_copy


class Dense(Backend):
    """fused_infer_attention; the base of all known backends.

    ``prefills``: what a prefill is called if its launches are not captured; None if they are.
    """

    shares = True
    implementation: type[Any] | None = AscendAttentionBackendImpl
    prefills: str | None = None

    def run(self, common: Any, draft_index: int, rows: Any) -> Any:
        return run_builder(self.builder, common, draft_index)

    def block_table(self, built: Any) -> torch.Tensor:
        """The block table in ``built``, int32 [requests, columns]; for MLA that of the decodes."""
        table: torch.Tensor = built.block_tables
        return table

    def for_group(self, built: Any, slots: torch.Tensor, table: torch.Tensor) -> Any:
        other = shallow_copy(built)
        other.block_tables, other.slot_mapping = table, slots
        return other

    def for_later_passes(self, built: Any, later: LaterPasses, rows: Any) -> list[Any]:
        return [shallow_copy(built) for _ in later.positions]

    def set_lengths(self, built: Any, lengths: HostLengths) -> None:
        built.seq_lens = built.seq_lens_cpu = lengths.tensor
        built.seq_lens_list = lengths.values

    def why_not_captured(self, queries: int) -> str | None:
        if self._of_layers is None:
            return None  # a cache without attention of its own, that of an indexer
        if self.implementation is None or not issubclass(self._of_layers, self.implementation):
            return super().why_not_captured(queries)
        if self.prefills is None or queries <= self.builder.decode_threshold:
            return None
        most = self.builder.decode_threshold
        return f"a request's {queries} tokens are {self.prefills} have {most}"

    def launches(self, metadata: Any) -> int:
        """Captured launches of one layer in a pass with this metadata."""
        return 1

    def tokens(self, metadata: Any) -> int:
        """Queries of a pass with this metadata; the implementation notes its launch by them."""
        tokens: int = metadata.actual_seq_lengths_q[-1]
        return tokens

    def with_lengths(self, metadata: Any, lengths: list[int]) -> Any:
        """A copy of ``metadata`` with these lengths, one for each request."""
        given = shallow_copy(metadata)
        given.seq_lens_list = lengths
        return given
