# SPDX-License-Identifier: Apache-2.0
"""Masks of verified rows where ranks keep stretches of several tokens of a sequence in turn."""

from __future__ import annotations

from typing import Any

import torch

from mkv_ascend.adapters.patching import patch
from mkv_ascend.drafting.context_shares import ContextShares


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
