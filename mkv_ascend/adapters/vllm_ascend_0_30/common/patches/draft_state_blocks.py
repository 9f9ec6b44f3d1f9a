# SPDX-License-Identifier: Apache-2.0
"""Prefix hits beside a draft's recurrent states.

vLLM 0.30.0 asks no group for a hit whose spec is not ``prefix_cacheable``. It still hands such a
group the computed blocks, none, of which its manager would keep count.
"""

from __future__ import annotations

from typing import Any

from vllm.v1.kv_cache_interface import KVCacheConfig

from mkv_ascend.adapters.common.patches import draft_state_blocks
from mkv_ascend.adapters.patching import patch, record

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


@patch(
    name="hits beside states of a draft",
    target="vllm.v1.engine.core:resolve_kv_cache_block_sizes",
    reads=(
        "vllm.v1.engine.core:EngineCore._initialize_kv_caches",
        "vllm.v1.core.kv_cache_utils:resolve_kv_cache_block_sizes",
        "vllm_ascend.patch.platform.patch_kv_cache_utils:_ascend_resolve_kv_cache_block_sizes",
    ),
    why="A draft's states are one for a request, in blocks as long as the longest context; the "
    "scheduler looks for hits in common multiples of all blocks, and for a state at their end. So "
    "there would be no hit. Here it is told that such a group has no say, by a spec that is "
    "not prefix_cacheable, with a manager of its own.",
    until="vLLM takes layers' states for not prefix_cacheable where their mode is none",
    test="tests/emulated/recurrent/test_draft_state_blocks.py",
)
def block_sizes_of_others(original: Any, kv_cache_config: KVCacheConfig, vllm_config: Any) -> Any:
    """Block sizes for hits, of the groups that have a say."""
    return draft_state_blocks.sizes_of_others(
        original, DraftRecurrentManager, kv_cache_config, vllm_config
    )
