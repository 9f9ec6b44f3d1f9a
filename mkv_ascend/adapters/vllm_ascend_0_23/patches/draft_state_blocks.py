# SPDX-License-Identifier: Apache-2.0
"""Prefix hits beside a draft's recurrent states: vLLM 0.23.0 asks every group for its blocks."""

from __future__ import annotations

from typing import Any

from vllm.v1.core.single_type_kv_cache_manager import MambaManager
from vllm.v1.kv_cache_interface import KVCacheConfig

from mkv_ascend.adapters.common.patches import draft_state_blocks
from mkv_ascend.adapters.patching import Patch, override, record

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


class DraftRecurrentManager(MambaManager):
    """The blocks of one recurrent group of a draft."""

    @override(BLOCKS)
    def get_num_blocks_to_allocate(self, request_id: str, *_: Any, **__: Any) -> int:
        """Number of blocks that the request does not have yet."""
        return draft_state_blocks.missing_blocks(self, request_id)

    @override(BLOCKS)
    def allocate_new_blocks(self, request_id: str, *_: Any, **__: Any) -> list[Any]:
        """Allocate all of a request's blocks at its beginning."""
        return draft_state_blocks.allocate_all(self, request_id)

    @override(BLOCKS)
    def cache_blocks(self, *_: Any, **__: Any) -> None:
        """Cache no block; a state belongs to one request and changes in place."""

    @override(BLOCKS)
    def remove_skipped_blocks(self, *_: Any, **__: Any) -> None:
        """All are needed to the end."""

    @classmethod
    @override(BLOCKS)
    def find_longest_cache_hit(
        cls,
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

    @override(BLOCKS)
    def allocate_new_computed_blocks(self, request_id: str, *_: Any, **__: Any) -> None:
        """Take no block of a hit."""


block_sizes_of_others = Patch(draft_state_blocks.HITS)


@block_sizes_of_others.also(target="vllm.v1.engine.core:resolve_kv_cache_block_sizes")
def _block_sizes(original: Any, kv_cache_config: KVCacheConfig, vllm_config: Any) -> Any:
    """Block sizes for hits, of the groups that have a say."""
    return draft_state_blocks.sizes_of_others(
        original, DraftRecurrentManager, kv_cache_config, vllm_config
    )
