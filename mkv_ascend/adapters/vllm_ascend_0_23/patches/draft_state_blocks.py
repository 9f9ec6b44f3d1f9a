# SPDX-License-Identifier: Apache-2.0
"""Prefix hits beside a draft's recurrent states: vLLM 0.23.0 asks every group for its blocks."""

from __future__ import annotations

from typing import Any

from vllm.v1.kv_cache_interface import KVCacheConfig

from mkv_ascend.adapters.common.patches import draft_state_blocks
from mkv_ascend.adapters.patching import Patch, record

OUT_OF_HITS = record(
    name="a draft's states out of prefix hits",
    target=(
        "vllm.v1.core.single_type_kv_cache_manager:MambaManager.find_longest_cache_hit",
        "vllm.v1.core.single_type_kv_cache_manager:"
        "SingleTypeKVCacheManager.allocate_new_computed_blocks",
    ),
    why="vLLM's manager looks states up at the ends of blocks, and takes those of a hit.",
    until="vLLM lets a group have no say in prefix hits",
    test="tests/emulated/recurrent/test_draft_state_blocks.py",
)


class DraftRecurrentManager(draft_state_blocks.DraftRecurrentBlocks):
    """The blocks of one recurrent group of a draft."""

    @classmethod
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

    def allocate_new_computed_blocks(self, request_id: str, *_: Any, **__: Any) -> None:
        """Take no block of a hit."""


block_sizes_of_others = Patch(draft_state_blocks.HITS)


@block_sizes_of_others.also(target="vllm.v1.engine.core:resolve_kv_cache_block_sizes")
def _block_sizes(original: Any, kv_cache_config: KVCacheConfig, vllm_config: Any) -> Any:
    """Block sizes for hits, of the groups that have a say."""
    return draft_state_blocks.sizes_of_others(
        original, DraftRecurrentManager, kv_cache_config, vllm_config
    )
