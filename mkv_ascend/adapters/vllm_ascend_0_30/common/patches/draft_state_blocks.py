# SPDX-License-Identifier: Apache-2.0
"""Prefix hits beside a draft's recurrent states.

vLLM 0.30.0 asks no group for a hit whose spec is not ``prefix_cacheable``. It still hands such a
group the computed blocks, none, of which its manager would keep count.
"""

from __future__ import annotations

from typing import Any

from vllm.v1.kv_cache_interface import KVCacheConfig

from mkv_ascend.adapters.common.patches import draft_state_blocks
from mkv_ascend.adapters.patching import Patch, record

OUT_OF_HITS = record(
    name="a draft's states out of prefix hits",
    target=(
        "vllm.v1.core.single_type_kv_cache_manager:"
        "SingleTypeKVCacheManager.add_local_computed_blocks",
        "vllm.v1.kv_cache_interface:KVCacheSpec.prefix_cacheable",
    ),
    why="A request keeps no count of cached blocks of states; vLLM's manager would begin one.",
    until="vLLM takes layers' states for not prefix_cacheable where their mode is none",
    test="tests/emulated/recurrent/test_draft_state_blocks.py",
)


class DraftRecurrentManager(draft_state_blocks.DraftRecurrentBlocks):
    """The blocks of one recurrent group of a draft."""

    def add_local_computed_blocks(self, request_id: str, *_: Any, **__: Any) -> None:
        """Take no block of a hit."""


block_sizes_of_others = Patch(draft_state_blocks.HITS)


@block_sizes_of_others.also(target="vllm.v1.engine.core:resolve_kv_cache_block_sizes")
def _block_sizes(original: Any, kv_cache_config: KVCacheConfig, vllm_config: Any) -> Any:
    """Block sizes for hits, of the groups that have a say."""
    return draft_state_blocks.sizes_of_others(
        original, DraftRecurrentManager, kv_cache_config, vllm_config
    )
