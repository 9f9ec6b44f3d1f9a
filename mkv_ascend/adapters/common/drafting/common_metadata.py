# SPDX-License-Identifier: Apache-2.0
"""Makes the input that vllm-ascend's metadata builders share in a pass, from the pass's rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from vllm_ascend.attention.attention_v1 import AscendAttentionState
from vllm_ascend.attention.utils import AscendCommonAttentionMetadata

from mkv_ascend.drafting.draft import PassBatch, shallow_copy


@dataclass(frozen=True)
class CommonMetadata:
    """Makes common metadata of a draft's passes.

    Attributes:
        later_state: vllm-ascend's attention state for passes with one token per request.
        lengths_on_host: whether the builder must get lengths on the host (with parallel drafting).
        reads_caches: whether layers have no keys of their own, so that a prefill reads them too.
    """

    later_state: AscendAttentionState
    lengths_on_host: bool = False
    reads_caches: bool = False

    def of(self, batch: PassBatch, *, causal: bool = False) -> Any:
        """Common metadata of a pass, without block table and slots.

        Values that do not depend on the pass are the target's.

        Args:
            causal: whether layers see no later row even of a block of mask tokens.
        """
        target = batch.common
        common: Any = _of_verify_step(batch) if target is None else shallow_copy(target)
        common.num_reqs = batch.requests
        common.num_actual_tokens, common.num_input_tokens = batch.rows, batch.input_rows
        common.query_start_loc = batch.query_start_loc
        common.query_start_loc_cpu = batch.query_start_loc_host
        common.positions = batch.positions
        common.seq_lens = batch.lengths
        if self.lengths_on_host and batch.index == 0:
            common.seq_lens = batch.host_lengths
        common._seq_lens_cpu = common.seq_lens_cpu = batch.host_lengths
        common.seq_lens_cpu_upper_bound = batch.length_bounds
        if batch.index == 0 and batch.causal:
            decodes = common.attn_state is AscendAttentionState.DecodeOnly
            if decodes and batch.longest_row > common.max_query_len:
                # A decode has one token; this one also has the sampled token.
                common.attn_state = AscendAttentionState.ChunkedPrefill
            if self.reads_caches:
                common.attn_state = AscendAttentionState.ChunkedPrefill
        else:
            common.decode_token_per_req = batch.longest_row
            common.graph_pad_size = -1
            common.attn_state = self.later_state
        common.max_query_len = batch.longest_row
        if not batch.causal:
            common.attn_state = AscendAttentionState.ChunkedPrefill
            if not causal:
                common.causal, common.attn_mask = False, None
        return common


def _of_verify_step(batch: PassBatch) -> AscendCommonAttentionMetadata:
    """Common metadata of the made-up verify step of a capture; the caller adds the pass's rows."""
    verified = int(batch.host_lengths[0]) // 2
    return AscendCommonAttentionMetadata(
        query_start_loc=batch.query_start_loc,
        query_start_loc_cpu=batch.query_start_loc_host,
        seq_lens=batch.lengths,
        num_reqs=batch.requests,
        num_actual_tokens=batch.rows,
        num_input_tokens=batch.input_rows,
        max_query_len=batch.longest_row,
        max_seq_len=2 * verified,
        block_table_tensor=batch.tables[0],
        slot_mapping=batch.slots[0],
        positions=batch.positions,
        attn_state=AscendAttentionState.ChunkedPrefill,
        decode_token_per_req=verified,
        is_prefilling=torch.zeros(batch.requests, dtype=torch.bool),
    )
