# SPDX-License-Identifier: Apache-2.0
"""Decode context parallelism, where ranks share each sequence: metadata of a draft's passes."""

from __future__ import annotations

from typing import Any

import torch
from vllm_ascend.attention.utils import (
    AscendPrefillContextParallelMetadata,
    split_decodes_and_prefills,
)

from mkv_ascend.adapters.common.backends.dense import Dense
from mkv_ascend.adapters.common.backends.mla import MLA
from mkv_ascend.adapters.common.drafting.kinds_of_drafts import shares_of_builder
from mkv_ascend.adapters.patching import patch, record
from mkv_ascend.drafting.context_shares import ContextShares
from mkv_ascend.drafting.draft import HostLengths, LaterPasses, shallow_copy

# Metadata of a draft's passes where ranks share each sequence (decode context parallelism).
#
# vllm-ascend's builders read a rank's lengths, and the mask of verified rows, from metadata that
# its runner makes once for the target's pass. Every pass of a draft has other lengths and other
# rows. So each gets metadata of its own here, from the pass's positions and lengths:
#
# * a decode attends to all keys that this rank keeps of its tokens, the new ones included. Where a
#   request has several rows, each has a mask of its own. The target's mask knows the positions of
#   the target's rows, and counts as if ranks kept every other token;
# * a prefill reads what was cached before it, and attends to its own rows directly.
#
# What this rank and others saw is merged by vllm-ascend's implementations.

SHARES = record(
    name="a draft's passes have shares of their own",
    target=(
        "vllm_ascend.attention.context_parallel.attention_cp:AscendAttentionCPMetadataBuilder.build",
        "vllm_ascend.attention.context_parallel.mla_cp:"
        "AscendMlaCPMetadataBuilder.build_decode_metadata",
    ),
    reads=(
        "vllm_ascend.attention.utils:AscendPrefillContextParallelMetadata",
        "vllm_ascend.attention.utils:split_decodes_and_prefills",
    ),
)


def with_shares(builder: Any, common: Any, draft_index: int) -> Any:
    """``common`` for a pass of the draft, with what its builder reads of this rank's share."""
    shares = shares_of_builder(builder)
    own = shallow_copy(common)
    shared = own.prefill_context_parallel_metadata = AscendPrefillContextParallelMetadata(
        num_actual_tokens_pcp_padded=common.num_actual_tokens
    )
    if draft_index:
        # Behind a prompt, too: all rows are decodes of one token.
        own.is_prefilling = torch.zeros(common.num_reqs, dtype=torch.bool)
    decodes, _prefills, rows, _others = split_decodes_and_prefills(
        own, builder.decode_threshold, treat_short_extends_as_decodes=False
    )
    starts = common.query_start_loc_cpu[: common.num_reqs + 1]
    lengths = common.seq_lens_cpu[: common.num_reqs].clone()
    lengths[decodes:] -= (starts[1:] - starts[:-1])[decodes:]
    shared.num_computed_tokens_of_pcp_dcp = _by_rank(shares, lengths)
    if rows > decodes:
        keys = common.block_table_tensor.shape[1] * builder.kv_cache_spec.block_size
        positions = common.positions[:rows].view(decodes, -1)
        shared.dcp_mtp_attn_mask = shares.hidden_keys(positions, keys)
    return own


def _by_rank(shares: ContextShares, lengths: torch.Tensor) -> Any:
    """Keys of each rank as vllm-ascend has them: NumPy, [requests, 1, ranks]."""
    return shares.lengths(lengths)[:, None].numpy()


class OfShares(Dense):
    """What is common to backends over this rank's share."""

    def run(self, common: Any, draft_index: int, rows: Any) -> Any:
        own = with_shares(self.builder, common, draft_index)
        return super().run(own, draft_index, rows)


class DenseOfShares(OfShares):
    """fused_infer_attention over this rank's share."""

    def for_group(self, built: Any, slots: torch.Tensor, table: torch.Tensor) -> Any:
        """Decodes and prefills have tables of their own."""
        other = super().for_group(built, slots, table)
        decodes = built.num_decodes
        if built.decode_meta is not None:
            other.decode_meta = shallow_copy(built.decode_meta)
            other.decode_meta.block_tables = table[:decodes]
        if built.prefill is not None:
            other.prefill = shallow_copy(built.prefill)
            other.prefill.block_tables = table[decodes:]
        return other

    def for_later_passes(self, built: Any, later: LaterPasses, rows: Any) -> list[Any]:
        made = super().for_later_passes(built, later, rows)
        for other in made:
            other.decode_meta = shallow_copy(built.decode_meta)
        return made

    def set_lengths(self, built: Any, lengths: HostLengths) -> None:
        super().set_lengths(built, lengths)
        by_rank = _by_rank(shares_of_builder(self.builder), lengths.tensor)
        built.decode_meta.num_computed_tokens_of_pcp_dcp = by_rank


class MLAOfShares(OfShares, MLA):
    """MLA over this rank's share."""

    def set_lengths(self, built: Any, lengths: HostLengths) -> None:
        super().set_lengths(built, lengths)
        own = shares_of_builder(self.builder).own_lengths(lengths.tensor)
        built.decode.cp_seq_len = own.tolist()


# Masks of verified rows where ranks keep stretches of several tokens of a sequence in turn.


@patch(
    name="verified rows see the keys of their rank's stretches",
    target="vllm_ascend.worker.pcp_utils:PCPManager.generate_mtp_attention_mask_for_decode",
)
def mask_by_stretches(original: Any, manager: Any, computed: Any, scheduled: Any) -> Any:
    """As vllm-ascend's, in its buffer; bool [requests, rows, keys], true where a key is hidden."""
    mask = original(manager, computed, scheduled)
    interleave = manager.vllm_config.parallel_config.cp_kv_cache_interleave_size
    if interleave == 1:
        return mask
    shares = ContextShares(
        manager.pcp_world_size * manager.dcp_world_size,
        manager.pcp_world_rank * manager.dcp_world_size + manager.dcp_world_rank,
        interleave,
    )
    positions = torch.tensor(computed)[:, None] + torch.arange(mask.shape[1])
    return mask.copy_(shares.hidden_keys(positions, mask.shape[2]))
