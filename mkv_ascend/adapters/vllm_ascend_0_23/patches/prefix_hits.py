# SPDX-License-Identifier: Apache-2.0
"""Prefix hits of groups that keep all tokens and look different to the scheduler.

The scheduler sees a group as its block size and the spec of its first layer. vllm-ascend 0.23.0's
coordinator looks prefix hits up once for every look, and cuts what it found to the length that all
agree on for the first look alone. Every other group that keeps all tokens is handed blocks beyond
the hit, which its request then counts as its own.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm_ascend.patch.platform import patch_kv_cache_coordinator

from mkv_ascend.adapters.guards import expect

PATCH = "prefix hits of unlike groups"
ORIGINAL = "mkv_ascend_original"


def install() -> None:
    """Wrap ``AscendHybridKVCacheCoordinator.find_longest_cache_hit``. Idempotent."""
    coordinator = patch_kv_cache_coordinator.AscendHybridKVCacheCoordinator
    original = coordinator.find_longest_cache_hit
    if hasattr(original, ORIGINAL):
        return
    parameters = tuple(inspect.signature(original).parameters)
    expect(
        parameters == ("self", "block_hashes", "max_cache_hit_length"),
        PATCH,
        f"find_longest_cache_hit takes {parameters}",
    )
    expect(
        hasattr(coordinator, "_get_effective_block_size"),
        PATCH,
        "the coordinator has no _get_effective_block_size",
    )

    @functools.wraps(original)
    def find_longest_cache_hit(self: Any, block_hashes: Any, max_cache_hit_length: int) -> Any:
        blocks, length = original(self, block_hashes, max_cache_hit_length)
        for spec, groups, _ in self.attention_groups:
            if _keeps_a_row_for_every_token(spec):
                for group in groups:
                    del blocks[group][length // self._get_effective_block_size(spec) :]
        return blocks, length

    setattr(find_longest_cache_hit, ORIGINAL, original)
    coordinator.find_longest_cache_hit = find_longest_cache_hit


def _keeps_a_row_for_every_token(spec: Any) -> bool:
    # DeepSeek-V4's compressed groups count on what the coordinator leaves them (its own comment).
    return isinstance(spec, FullAttentionSpec) and getattr(spec, "compress_ratio", 1) == 1
