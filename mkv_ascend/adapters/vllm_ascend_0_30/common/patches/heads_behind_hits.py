# SPDX-License-Identifier: Apache-2.0
"""Heads on hidden states behind prefix hits: blocks are right, or are computed again.

The last row of a block of such a draft is made from the token after the block, which may be another
request's. vLLM therefore ends a hit one block earlier. vllm-ascend 0.30.0rc2 takes the whole hit
where nothing fetches keys from elsewhere, because an earlier end costs models with states their
whole hit. Here blocks are hashed with the token behind them, and the whole hit is right. Where that
token does not tell all, models without states pay one block.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm.v1.core.single_type_kv_cache_manager import MambaManager

from mkv_ascend.adapters.common.patches.hashes_ahead import (
    hash_one_token_ahead,
    make_without_drops,
    tells_all,
)
from mkv_ascend.adapters.patching import Patch, patch

if TYPE_CHECKING:
    from vllm.config import VllmConfig


@patch(
    name="heads behind prefix hits",
    target=(
        "vllm_ascend.patch.platform.patch_kv_cache_coordinator:"
        "AscendHybridKVCacheCoordinator.__init__",
        "vllm.v1.engine.core:get_request_block_hasher",
        "vllm.v1.core.kv_cache_manager:KVCacheManager.__init__",
    ),
    reads=(
        "vllm_ascend.patch.platform.patch_kv_cache_coordinator:_skips_eagle_block_drop",
        "vllm.v1.core.block_pool:BlockPool.cache_full_blocks",
        "vllm.v1.core.kv_cache_coordinator:KVCacheCoordinator.cache_blocks",
        "vllm.v1.core.kv_cache_coordinator:HybridKVCacheCoordinator.cache_blocks",
        "vllm.v1.core.kv_cache_manager:KVCacheManager.allocate_slots",
        "vllm.v1.core.kv_cache_utils:generate_block_hash_extra_keys",
        "vllm.v1.request:Request.update_block_hashes",
    ),
)
def end_hits_a_block_earlier(
    original: Any, coordinator: Any, kv_cache_config: Any, *args: Any, **kwargs: Any
) -> None:
    original(coordinator, kv_cache_config, *args, **kwargs)
    states = any(isinstance(one, MambaManager) for one in coordinator.single_type_managers)
    if getattr(kv_cache_config, "kv_transfer_config", None) is None and not states:
        coordinator.skips_eagle_block_drop = False


hash_blocks_of_heads = Patch(end_hits_a_block_earlier.record)
hash_blocks_of_heads.also(target="vllm.v1.engine.core:get_request_block_hasher")(
    hash_one_token_ahead
)


@hash_blocks_of_heads.also(target="vllm.v1.core.kv_cache_manager:KVCacheManager.__init__")
def drop_no_block(original: Any, manager: Any, *args: Any, **kwargs: Any) -> None:
    """See ``make_without_drops``."""
    cache_blocks = make_without_drops(original, manager, *args, **kwargs)
    manager.coordinator.cache_blocks = cache_blocks


def patches_for(config: VllmConfig) -> tuple[Patch, ...]:
    """What makes hits of this configuration's heads right."""
    return (hash_blocks_of_heads,) if tells_all(config) else (end_hits_a_block_earlier,)
