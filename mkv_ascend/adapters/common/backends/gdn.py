# SPDX-License-Identifier: Apache-2.0
"""Gated delta nets (GDN), of drafts and of targets.

vllm-ascend's builder makes metadata anew for each KV group: some thirty small tensors and lists.
Between groups of one spec only the rows of the block table differ. Source:
``AscendGDNAttentionMetadataBuilder.build`` of vllm-ascend 0.23.0 (ops/gdn_attn_builder.py).
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import torch
from vllm.v1.attention.backends.utils import mamba_get_block_table_tensor

from mkv_ascend.adapters.common.backends.recurrent import (
    RecurrentBackend,
    without_room,
)
from mkv_ascend.drafting.recurrent_groups import TargetRows


class GatedDeltaNet(RecurrentBackend):
    """Gated delta rule (Qwen3-Next, Qwen3.5): a convolution and a matrix per head.

    So is Kimi delta attention (KDA), by the same builder: one decay for each channel of a key.
    """

    @classmethod
    def why_not(cls, layer: Any, speculative: int) -> str | None:
        """KDA's window has room for draft tokens on vLLM 0.30.0, and none on 0.23.0."""
        width = getattr(layer, "conv_kernel_size", None) or getattr(layer, "conv_size", None)
        return without_room(layer, width, speculative)

    def run_first(self, common: Any, rows: TargetRows) -> Any:
        """Treat rows that run token by token as the builder's speculative decodes."""
        return self.builder.build(
            0,
            common,
            num_accepted_tokens=rows.ones,
            num_decode_draft_tokens_cpu=rows.row_lengths - 1,
        )

    def finished(self, built: Any, rows: TargetRows) -> Any:
        """Give the kernel one block per token, from the builder's 1 + K per row."""
        lengths = rows.row_lengths[rows.row_lengths > 0]
        table = built.spec_state_indices_tensor
        if table is None or not bool((lengths < table.shape[1]).any()):
            return built
        if bool((lengths == lengths[0]).all()):
            # In a graph, too: nothing is copied from the host.
            built.spec_state_indices_tensor = table[:, : int(lengths[0])].flatten()
        else:
            tokens = torch.arange(table.shape[1]) < lengths[:, None]
            places = tokens.flatten().nonzero()[:, 0].to(table.device, non_blocking=True)
            built.spec_state_indices_tensor = table.flatten()[places]
        return built

    def for_table(
        self, built: Any, table: torch.Tensor, lengths: torch.Tensor | None = None
    ) -> Any:
        """``built``, which the builder has just made, for another group.

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


def gdn_of(builder: Any, spec: Any) -> GatedDeltaNet | None:
    """How metadata of the builder serves other groups; None if each group must build its own.

    With full graphs each group builds its own, because a capture keeps the addresses of the
    buffers of that group's builder.
    """
    # Not with this module, whose other parts need no device.
    from vllm_ascend.ops.gdn_attn_builder import AscendGDNAttentionMetadataBuilder

    if isinstance(builder, AscendGDNAttentionMetadataBuilder) and not builder.use_full_cuda_graph:
        return GatedDeltaNet(builder, spec)
    return None
