# SPDX-License-Identifier: Apache-2.0
"""Blocks in the engine core: prefix hits of unlike groups, of heads and beside states."""

from __future__ import annotations

from typing import Any

from vllm.v1.core.single_type_kv_cache_manager import MambaManager
from vllm.v1.kv_cache_interface import FullAttentionSpec, MambaSpec

from mkv_ascend.adapters.common.attention.derived import derive
from mkv_ascend.adapters.common.patches import prefix_hits
from mkv_ascend.adapters.common.patches.prefix_hits import hash_one_token_ahead, make_without_drops
from mkv_ascend.adapters.patching import patch, record

# Prefix hits of groups that keep all tokens and look different to the scheduler.
#
# The scheduler sees a group as its block size and the spec of its first layer. vllm-ascend
# 0.23.0's coordinator looks prefix hits up once for every look, and cuts what it found to the
# length that all agree on for the first look alone. Every other group that keeps all tokens is
# handed blocks beyond the hit, which its request then counts as its own.


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


# The record of blocks of heads that are hashed with the token behind them.

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
    cache_blocks = make_without_drops(original, manager, *args, **kwargs)
    manager.coordinator.cache_blocks = cache_blocks


# Prefix hits beside a draft's recurrent states: vLLM 0.23.0 asks every group for its blocks.

BLOCKS = record(
    name="blocks of a draft's states",
    target=(
        "vllm.v1.core.single_type_kv_cache_manager:MambaManager.get_num_blocks_to_allocate",
        "vllm.v1.core.single_type_kv_cache_manager:MambaManager.allocate_new_blocks",
        "vllm.v1.core.single_type_kv_cache_manager:MambaManager.cache_blocks",
        "vllm.v1.core.single_type_kv_cache_manager:MambaManager.remove_skipped_blocks",
        "vllm.v1.core.single_type_kv_cache_manager:MambaManager.find_longest_cache_hit",
        "vllm.v1.core.single_type_kv_cache_manager:"
        "SingleTypeKVCacheManager.allocate_new_computed_blocks",
    ),
)


def _accept_any_hit(
    cls: type[MambaManager],
    block_hashes: Any,
    max_length: int,
    kv_cache_group_ids: list[int],
    block_pool: Any,
    kv_cache_spec: Any,
    *_: Any,
    **__: Any,
) -> tuple[list[Any], ...]:
    """Accept any hit of the other groups: null blocks up to ``max_length``."""
    blocks = max_length // kv_cache_spec.block_size
    return tuple([block_pool.null_block] * blocks for _ in kv_cache_group_ids)


block_sizes_of_others = prefix_hits.block_sizes_beside(
    derive(
        MambaManager,
        "[draft]",
        {
            **prefix_hits.OF_A_DRAFTS_STATES,
            "find_longest_cache_hit": classmethod(_accept_any_hit),
            "allocate_new_computed_blocks": prefix_hits.do_nothing,
        },
        BLOCKS,
    )
)


# New blocks of attention that are zeroed because recurrent states may have been in them.
#
# A block serves states and keys in turn. Rejected rows of a proposal's first pass are keys that
# were never written, and states in float32 read as NaN in other types: masked, they count 0 times
# NaN, which is NaN, and every draft token after them is wrong. vLLM 0.23.0 has the scheduler name
# new blocks of dense layers (and of no subclass of their specs). The runner zeroes what is named.
#
# Where nothing is zeroed, vLLM 0.23.0 names blocks all the same, and nobody takes the names:
# these lists grow by eight bytes for each block that a request is given, for ever.


@patch(
    name="new blocks beside recurrent states",
    target="vllm.v1.core.kv_cache_coordinator:KVCacheCoordinator.allocate_new_blocks",
    reads=(
        "vllm.v1.core.single_type_kv_cache_manager:SingleTypeKVCacheManager.allocate_new_blocks",
        "vllm.v1.core.single_type_kv_cache_manager:SingleTypeKVCacheManager.take_new_block_ids",
    ),
)
def name_new_blocks(original: Any, coordinator: Any, *args: Any, **kwargs: Any) -> Any:
    """Let groups of windows, chunks and MLA name new blocks, too; and none where none is zeroed."""
    allocated = original(coordinator, *args, **kwargs)
    for manager, blocks in zip(coordinator.single_type_managers, allocated, strict=True):
        if coordinator.kv_cache_config.needs_kv_cache_zeroing:
            _name(manager, blocks)
        else:
            # vLLM has named those of dense layers by then.
            manager.new_block_ids.clear()
    return allocated


def _name(manager: Any, blocks: list[Any]) -> None:
    """Add new blocks to those that the scheduler has zeroed, where the manager did not."""
    named = manager.new_block_ids
    if isinstance(manager.kv_cache_spec, MambaSpec) or not blocks:
        return
    if blocks[-1].block_id not in named[-len(blocks) :]:
        named.extend(block.block_id for block in blocks)
