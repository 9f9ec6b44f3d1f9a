# SPDX-License-Identifier: Apache-2.0
"""Separates the target's groups of recurrent states from the draft's.

With prefix caching the target's states move from block to block, so that states at the ends of
blocks stay. vLLM 0.23.0's code for that takes all groups of states, and asserts that they have one
spec. A draft's states never move (``draft_state_blocks.py``), so they are left out here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm.v1.kv_cache_interface import MambaSpec

from mkv_ascend.adapters.patching import expect, patch

if TYPE_CHECKING:
    from vllm.v1.kv_cache_interface import KVCacheConfig


@patch(
    name="groups of the target's states",
    target="vllm.v1.worker.mamba_utils:get_mamba_groups",
    why="With prefix caching the target's states move from block to block. All groups of states "
    "are taken for the target's, and an assertion fails where a draft has states too.",
    until="vLLM tells groups of states of a draft from those of the target",
    test="tests/emulated/recurrent/test_hits_of_recurrent_drafts.py"
    "::test_states_of_the_target_are_hit_and_those_of_the_draft_rebuilt",
)
def groups_that_move(original: Any, kv_cache_config: KVCacheConfig) -> tuple[list[int], MambaSpec]:
    """The groups of states that move; vLLM's answer if none does."""
    moving = {
        index: group.kv_cache_spec
        for index, group in enumerate(kv_cache_config.kv_cache_groups)
        if _moves(group.kv_cache_spec)
    }
    if not moving:
        found: tuple[list[int], MambaSpec] = original(kv_cache_config)
        return found
    first = next(iter(moving.values()))
    expect(
        all(spec == first for spec in moving.values()),
        groups_that_move.record.name,
        "specs of groups differ",
    )
    return list(moving), first


def _moves(spec: Any) -> bool:
    return isinstance(spec, MambaSpec) and spec.mamba_cache_mode != "none"
