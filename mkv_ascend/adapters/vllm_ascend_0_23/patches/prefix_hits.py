# SPDX-License-Identifier: Apache-2.0
"""Prefix hits of groups that keep all tokens and look different to the scheduler.

The scheduler sees a group as its block size and the spec of its first layer. vllm-ascend 0.23.0's
coordinator looks prefix hits up once for every look, and cuts what it found to the length that all
agree on for the first look alone. Every other group that keeps all tokens is handed blocks beyond
the hit, which its request then counts as its own.
"""

from __future__ import annotations

from typing import Any

from vllm.v1.kv_cache_interface import FullAttentionSpec

from mkv_ascend.adapters.patching import patch


@patch(
    name="prefix hits of unlike groups",
    target="vllm_ascend.patch.platform.patch_kv_cache_coordinator:"
    "AscendHybridKVCacheCoordinator.find_longest_cache_hit",
    reads=(
        "vllm_ascend.patch.platform.patch_kv_cache_coordinator:"
        "AscendHybridKVCacheCoordinator._get_effective_block_size",
    ),
)
def cut_to_the_hit(
    original: Any, coordinator: Any, block_hashes: Any, max_cache_hit_length: int
) -> Any:
    """``find_longest_cache_hit`` with no blocks beyond the hit for any group."""
    blocks, length = original(coordinator, block_hashes, max_cache_hit_length)
    for spec, groups, _ in coordinator.attention_groups:
        if _keeps_a_row_for_every_token(spec):
            for group in groups:
                del blocks[group][length // coordinator._get_effective_block_size(spec) :]
    return blocks, length


def _keeps_a_row_for_every_token(spec: Any) -> bool:
    # DeepSeek-V4's compressed groups count on what the coordinator leaves them (its own comment).
    return isinstance(spec, FullAttentionSpec) and getattr(spec, "compress_ratio", 1) == 1
