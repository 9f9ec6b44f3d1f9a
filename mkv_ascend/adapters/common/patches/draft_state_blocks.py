# SPDX-License-Identifier: Apache-2.0
"""Blocks of a draft's recurrent states beside prefix caching.

A draft's state at the end of a prefix is kept nowhere; the draft reads a hit itself
(``rebuilding_states.py``). So its recurrent groups do not limit the length of a hit, and their
blocks are never cached. The scheduler identifies a group by its spec, and finds its manager by the
spec's class. Here the spec is ours, and so is the manager, a class of each adapter. Workers keep
the spec that the layers gave.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from vllm.v1.core.single_type_kv_cache_manager import MambaManager
from vllm.v1.kv_cache_interface import KVCacheConfig, MambaSpec
from vllm.v1.kv_cache_spec_registry import KVCacheSpecRegistry

from mkv_ascend.adapters.patching import record


@dataclass(frozen=True)
class DraftRecurrentSpec(MambaSpec):
    """States of a draft for the scheduler: ``1 + num_speculative_blocks`` blocks of a request.

    ``block_size`` does not describe these blocks. It is a size that divides hits anyway, because
    hits are looked for in common multiples of all groups' blocks.
    """

    @property
    def prefix_cacheable(self) -> bool:
        """False, which leaves the group out of prefix hits where vLLM asks (0.30.0)."""
        return False


HITS = record(
    name="states of a draft beside prefix caching",
    target=(
        "vllm.v1.engine.core:resolve_kv_cache_block_sizes",
        "vllm.v1.worker.mamba_utils:get_mamba_groups",
        "vllm_ascend.worker.model_runner_v1:NPUModelRunner._update_states",
        "vllm_ascend.worker.model_runner_v1:NPUModelRunner.propose_draft_token_ids",
    ),
    reads=(
        "vllm.v1.engine.core:EngineCore._initialize_kv_caches",
        "vllm.v1.core.kv_cache_utils:resolve_kv_cache_block_sizes",
        "vllm_ascend.patch.platform.patch_kv_cache_utils:_ascend_resolve_kv_cache_block_sizes",
    ),
)


def missing_blocks(manager: MambaManager, request: str) -> int:
    """How many of a request's blocks it does not have; it has its own, from beginning to end."""
    held = len(manager.req_to_blocks.get(request, ()))
    return max(0, 1 + manager.num_speculative_blocks - held)


def allocate_all(manager: MambaManager, request: str) -> list[Any]:
    """Allocate all of a request's blocks at its beginning; returns new ones."""
    if not (missing := missing_blocks(manager, request)):
        return []
    blocks: list[Any] = manager.block_pool.get_new_blocks(missing)
    manager.req_to_blocks[request].extend(blocks)
    return blocks


def sizes_of_others(
    original: Any, manager: type[MambaManager], config: KVCacheConfig, vllm_config: Any
) -> Any:
    """Block sizes for hits, of the groups that have a say.

    Args:
        original: vLLM's ``resolve_kv_cache_block_sizes``.
        manager: the adapter's, of a draft's states.
        config: the scheduler's groups; changed.
        vllm_config: with the options of caches; changed.
    """
    KVCacheSpecRegistry.register(DraftRecurrentSpec, manager, MambaSpec)
    cache = vllm_config.cache_config
    if cache.enable_prefix_caching:
        sizes = leave_hits_to_others(config)
        if sizes:
            # As the engine core has set it, of groups that have a say.
            cache.block_size = min(sizes)
    return original(config, vllm_config)


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
