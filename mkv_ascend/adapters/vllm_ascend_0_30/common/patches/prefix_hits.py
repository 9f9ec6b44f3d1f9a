# SPDX-License-Identifier: Apache-2.0
"""Blocks in the engine core: prefix hits of heads, and beside a draft's recurrent states."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm.v1.core.single_type_kv_cache_manager import MambaManager

from mkv_ascend.adapters.common.attention.derived import derive
from mkv_ascend.adapters.common.patches import prefix_hits
from mkv_ascend.adapters.common.patches.prefix_hits import (
    hash_one_token_ahead,
    make_without_drops,
    tells_all,
)
from mkv_ascend.adapters.patching import Patch, patch, record

if TYPE_CHECKING:
    from vllm.config import VllmConfig


# Prefix hits beside a draft's recurrent states.
#
# vLLM 0.30.0 asks no group for a hit whose spec is not ``prefix_cacheable``. It still hands such
# a group the computed blocks, none, of which its manager would keep count.

BLOCKS = record(
    name="blocks of a draft's states",
    target=(
        "vllm.v1.core.single_type_kv_cache_manager:MambaManager.get_num_blocks_to_allocate",
        "vllm.v1.core.single_type_kv_cache_manager:MambaManager.allocate_new_blocks",
        "vllm.v1.core.single_type_kv_cache_manager:MambaManager.cache_blocks",
        "vllm.v1.core.single_type_kv_cache_manager:MambaManager.remove_skipped_blocks",
        "vllm.v1.core.single_type_kv_cache_manager:"
        "SingleTypeKVCacheManager.add_local_computed_blocks",
        "vllm.v1.kv_cache_interface:KVCacheSpec.prefix_cacheable",
    ),
)


block_sizes_of_others = prefix_hits.block_sizes_beside(
    derive(
        MambaManager,
        "[draft]",
        {
            **prefix_hits.OF_A_DRAFTS_STATES,
            "add_local_computed_blocks": prefix_hits.do_nothing,
        },
        BLOCKS,
    )
)


# Heads on hidden states behind prefix hits: blocks are right, or are computed again.
#
# The last row of a block of such a draft is made from the token after the block, which may be
# another request's. vLLM therefore ends a hit one block earlier. vllm-ascend 0.30.0rc2 takes the
# whole hit where nothing fetches keys from elsewhere, because an earlier end costs models with
# states their whole hit. Here blocks are hashed with the token behind them, and the whole hit is
# right. Where that token does not tell all, models without states pay one block.


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
    cache_blocks = make_without_drops(original, manager, *args, **kwargs)
    manager.coordinator.cache_blocks = cache_blocks


def patches_for(config: VllmConfig) -> tuple[Patch, ...]:
    """What makes hits of this configuration's heads right."""
    return (hash_blocks_of_heads,) if tells_all(config) else (end_hits_a_block_earlier,)
