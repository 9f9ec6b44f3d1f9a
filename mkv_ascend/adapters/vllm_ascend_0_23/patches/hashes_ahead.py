# SPDX-License-Identifier: Apache-2.0
"""The record of blocks of heads that are hashed with the token behind them."""

from __future__ import annotations

from typing import Any

from mkv_ascend.adapters.common.patches.hashes_ahead import (
    hash_one_token_ahead,
    make_without_drops,
)
from mkv_ascend.adapters.patching import patch

hash_blocks_of_heads = patch(
    name="hashes of blocks of heads",
    target=(
        "vllm.v1.engine.core:get_request_block_hasher",
        "vllm.v1.core.kv_cache_manager:KVCacheManager.__init__",
    ),
    reads=(
        "vllm.v1.core.block_pool:BlockPool.cache_full_blocks",
        "vllm.v1.core.kv_cache_coordinator:KVCacheCoordinator.cache_blocks",
        "vllm.v1.core.kv_cache_manager:KVCacheManager.allocate_slots",
        "vllm.v1.core.kv_cache_utils:generate_block_hash_extra_keys",
        "vllm.v1.request:Request.update_block_hashes",
    ),
)(hash_one_token_ahead)


@hash_blocks_of_heads.also(target="vllm.v1.core.kv_cache_manager:KVCacheManager.__init__")
def drop_no_block(original: Any, manager: Any, *args: Any, **kwargs: Any) -> None:
    """See ``make_without_drops``."""
    cache_blocks = make_without_drops(original, manager, *args, **kwargs)
    manager.coordinator.cache_blocks = cache_blocks
