# SPDX-License-Identifier: Apache-2.0
"""Separates the target's groups of recurrent states from the draft's.

With prefix caching the target's states move from block to block, so that states at the ends of
blocks stay. vLLM's code for that takes all groups of states (that of 0.23.0 asserts that they have
one spec; that of 0.30.0 asks the target's model how states of each kind are copied). A draft's
states never move (``draft_state_blocks.py``), so they are left out here.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from vllm.v1.kv_cache_interface import KVCacheGroupSpec, KVCacheSpec, MambaSpec

from mkv_ascend.adapters.common.patches.draft_state_blocks import HITS
from mkv_ascend.adapters.patching import Patch

if TYPE_CHECKING:
    from vllm.v1.kv_cache_interface import KVCacheConfig


groups_that_move = Patch(HITS)
OF_ANOTHER_STAGE = "a layer of another pipeline stage"


@groups_that_move.also(target="vllm.v1.worker.mamba_utils:get_mamba_groups")
def _groups_that_move(original: Any, kv_cache_config: KVCacheConfig) -> Any:
    """vLLM's answer, in the form of its release, as if other groups had no states.

    If no states move, it is the answer for all of them.
    """
    groups = kv_cache_config.kv_cache_groups
    moving = [group for group in groups if _moves(group.kv_cache_spec)]
    if not moving:
        return original(kv_cache_config)
    if not any(group.layer_names for group in moving):
        # vLLM 0.30.0 asks the layers, and ends a pipeline stage that has none. Shown one of another
        # stage, it prepares to copy the states of none.
        shown = dataclasses.replace(moving[0], layer_names=[OF_ANOTHER_STAGE])
        groups = [shown if group is moving[0] else group for group in groups]
    # Groups are told by their place, so that none can be taken out.
    seen = [group if _moves(group.kv_cache_spec) else _without_states(group) for group in groups]
    return original(dataclasses.replace(kv_cache_config, kv_cache_groups=seen))


def _without_states(group: KVCacheGroupSpec) -> KVCacheGroupSpec:
    return KVCacheGroupSpec([], KVCacheSpec(group.kv_cache_spec.block_size))


def _moves(spec: Any) -> bool:
    return isinstance(spec, MambaSpec) and spec.mamba_cache_mode != "none"
