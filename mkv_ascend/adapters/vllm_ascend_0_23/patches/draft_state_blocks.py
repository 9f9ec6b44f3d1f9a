# SPDX-License-Identifier: Apache-2.0
"""Blocks of a draft's recurrent states beside prefix caching.

A draft's state at the end of a prefix is kept nowhere; the draft reads a hit itself
(``rebuilding_states.py``). So its recurrent groups do not limit the length of a hit, and their
blocks are never cached. The scheduler identifies a group by its spec, and finds its manager by the
spec's class. Here both classes are ours. Workers keep the spec that the layers gave.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from vllm.v1.core.single_type_kv_cache_manager import MambaManager
from vllm.v1.kv_cache_interface import KVCacheConfig, MambaSpec
from vllm.v1.kv_cache_spec_registry import KVCacheSpecRegistry

from mkv_ascend.adapters.patching import patch, record


@dataclass(frozen=True)
class DraftRecurrentSpec(MambaSpec):
    """States of a draft for the scheduler: ``1 + num_speculative_blocks`` blocks of a request.

    ``block_size`` does not describe these blocks. It is a size that divides hits anyway, because
    hits are looked for in common multiples of all groups' blocks.
    """


MANAGER = record(
    name="blocks of a draft's states",
    target=(
        "vllm.v1.core.single_type_kv_cache_manager:MambaManager.find_longest_cache_hit",
        "vllm.v1.core.single_type_kv_cache_manager:MambaManager.get_num_blocks_to_allocate",
        "vllm.v1.core.single_type_kv_cache_manager:"
        "SingleTypeKVCacheManager.allocate_new_computed_blocks",
        "vllm.v1.core.single_type_kv_cache_manager:MambaManager.allocate_new_blocks",
        "vllm.v1.core.single_type_kv_cache_manager:MambaManager.cache_blocks",
        "vllm.v1.core.single_type_kv_cache_manager:MambaManager.remove_skipped_blocks",
    ),
    why="A draft's states are one for a request and stay in their blocks from its beginning to its "
    "end; vLLM's manager moves states to the ends of blocks and looks them up there.",
    until="vLLM lets a group have no say in prefix hits",
    test="tests/emulated/recurrent/test_draft_state_blocks.py",
)


class DraftRecurrentManager(MambaManager):
    """The blocks of one recurrent group of a draft.

    A request has its own blocks, and as many from its beginning to its end.
    """

    def _missing(self, request_id: str) -> int:
        held = len(self.req_to_blocks.get(request_id, ()))
        return max(0, 1 + self.num_speculative_blocks - held)

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

    def get_num_blocks_to_allocate(self, request_id: str, *_: Any, **__: Any) -> int:
        """Number of blocks that the request does not have yet."""
        return self._missing(request_id)

    def allocate_new_computed_blocks(self, request_id: str, *_: Any, **__: Any) -> None:
        """Take no block of a hit."""

    def allocate_new_blocks(self, request_id: str, *_: Any, **__: Any) -> list[Any]:
        """Allocate all of a request's blocks at its beginning."""
        missing = self._missing(request_id)
        if not missing:
            return []
        blocks: list[Any] = self.block_pool.get_new_blocks(missing)
        self.req_to_blocks[request_id].extend(blocks)
        return blocks

    def cache_blocks(self, *_: Any, **__: Any) -> None:
        """Cache no block; a state belongs to one request and changes in place."""

    def remove_skipped_blocks(self, *_: Any, **__: Any) -> None:
        """All are needed to the end."""


@patch(
    name="hits beside states of a draft",
    target="vllm.v1.engine.core:resolve_kv_cache_block_sizes",
    reads=(
        "vllm.v1.engine.core:EngineCore._initialize_kv_caches",
        "vllm.v1.core.kv_cache_utils:resolve_kv_cache_block_sizes",
        "vllm_ascend.patch.platform.patch_kv_cache_utils:_ascend_resolve_kv_cache_block_sizes",
    ),
    writes=("block_size", "kv_cache_spec"),
    why="A draft's states are one for a request, in blocks as long as the longest context; the "
    "scheduler looks for hits in common multiples of all blocks, and for a state at their end. So "
    "there would be no hit. Here it is told that such a group has no say, by a spec with a manager "
    "of its own.",
    until="vLLM lets a group have no say in prefix hits",
    test="tests/emulated/recurrent/test_draft_state_blocks.py",
)
def block_sizes_of_others(original: Any, kv_cache_config: KVCacheConfig, vllm_config: Any) -> Any:
    """Block sizes for hits, of the groups that have a say."""
    KVCacheSpecRegistry.register(DraftRecurrentSpec, DraftRecurrentManager, MambaSpec)
    cache = vllm_config.cache_config
    if cache.enable_prefix_caching:
        sizes = leave_hits_to_others(kv_cache_config)
        if sizes:
            # As the engine core has set it, of groups that have a say.
            cache.block_size = min(sizes)
    return original(kv_cache_config, vllm_config)


def leave_hits_to_others(config: KVCacheConfig) -> list[int]:
    """Give a draft's groups of states in the scheduler's ``config`` the spec from above.

    With prefix caching, states of the target are kept at the ends of blocks; those that are not
    are a draft's.

    Returns:
        Block sizes of the other groups; empty where nothing was changed.
    """
    groups = config.kv_cache_groups
    own = [group for group in groups if _keeps_no_prefix(group.kv_cache_spec)]
    others = [group.kv_cache_spec for group in groups if not _keeps_no_prefix(group.kv_cache_spec)]
    sizes = [spec.block_size for spec in others]
    if not own or not sizes:
        return []
    for group in own:
        spec = replace(group.kv_cache_spec, block_size=min(sizes))
        values = {field.name: getattr(spec, field.name) for field in fields(MambaSpec)}
        group.kv_cache_spec = DraftRecurrentSpec(**values)
    return sizes


def _keeps_no_prefix(spec: Any) -> bool:
    return isinstance(spec, MambaSpec) and spec.mamba_cache_mode == "none"
