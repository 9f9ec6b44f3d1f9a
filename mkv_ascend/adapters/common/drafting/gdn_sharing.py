# SPDX-License-Identifier: Apache-2.0
"""How groups of gated delta nets (GDN) with different block tables share metadata.

vllm-ascend's builder makes metadata anew for each KV group: some thirty small tensors and lists.
Between groups of one spec only the rows of the block table differ. Source:
``AscendGDNAttentionMetadataBuilder.build`` of vllm-ascend 0.23.0 (ops/gdn_attn_builder.py).
"""

from __future__ import annotations

import copy
from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Any

import torch
from vllm.v1.attention.backends.utils import mamba_get_block_table_tensor
from vllm_ascend.ops.gdn_attn_builder import AscendGDNAttentionMetadataBuilder


@dataclass(frozen=True)
class GDNSharing:
    """Makes a group's metadata from the metadata that ``builder`` has just made."""

    builder: Any

    def for_table(self, built: Any, table: torch.Tensor, lengths: torch.Tensor | None) -> Any:
        """``built`` for another group.

        Args:
            table: int32 [requests, columns], padded like the builder's own.
            lengths: int32 [requests], lengths of the sequences; None if states of prefixes are not
                kept.
        """
        builder = self.builder
        states = mamba_get_block_table_tensor(
            table, lengths, builder.kv_cache_spec, builder.vllm_config.cache_config.mamba_cache_mode
        )
        other = copy.copy(built)
        if built.spec_sequence_masks is None:
            first, windows = states[:, 0], states
        else:
            rows = builder.spec_sequence_indices[: built.num_spec_decodes]
            columns = states[:, : builder.num_spec + 1]
            other.spec_state_indices_tensor = torch.index_select(columns, 0, rows)
            others = builder.non_spec_sequence_indices[: len(table) - built.num_spec_decodes]
            first = windows = torch.index_select(states[:, 0], 0, others)
        if built.non_spec_state_indices_tensor is not None:
            other.non_spec_state_indices_tensor = first
        if built.prefill_state_indices is not None:
            # Prefills come after decodes.
            other.prefill_state_indices = first[len(first) - len(built.prefill_state_indices) :]
        other.non_spec_prefill_metadata = _with_rows(
            built.non_spec_prefill_metadata, "causal_conv1d", windows
        )
        other.non_spec_decode_metadata = _with_rows(
            built.non_spec_decode_metadata, "causal_conv1d", windows
        )
        other.spec_decode_metadata = _with_rows(
            built.spec_decode_metadata, "spec_causal_conv1d", other.spec_state_indices_tensor
        )
        return other


def _with_rows(part: Any, name: str, rows: torch.Tensor | None) -> Any:
    """``part`` of the metadata with these rows of the block table for its convolution."""
    if part is None:
        return None
    convolution = getattr(part, name)
    assert rows is not None
    count = convolution.cache_indices.shape[0]
    return replace(part, **{name: replace(convolution, cache_indices=rows[:count])})


def gdn_sharing_of(builder: Any) -> GDNSharing | None:
    """How the builder's metadata serves other groups; None if each group must build its own.

    With full graphs each group builds its own, because a capture keeps the addresses of the
    buffers of that group's builder.
    """
    if isinstance(builder, AscendGDNAttentionMetadataBuilder) and not builder.use_full_cuda_graph:
        return GDNSharing(builder)
    return None


def gdn_need(builder: Any, spec: Any) -> Hashable:
    """Groups with equal values share metadata."""
    return type(builder), spec
