# SPDX-License-Identifier: Apache-2.0
"""New blocks of attention that are zeroed because recurrent states may have been in them.

A block serves states and keys in turn. Rejected rows of a proposal's first pass are keys that were
never written, and states in float32 read as NaN in other types: masked, they count 0 times NaN,
which is NaN, and every draft token after them is wrong. vLLM 0.23.0 has the scheduler name new
blocks of dense layers (and of no subclass of their specs). The runner zeroes what is named.

Where nothing is zeroed, vLLM 0.23.0 names blocks all the same, and nobody takes the names: these
lists grow by eight bytes for each block that a request is given, for ever.
"""

from __future__ import annotations

from typing import Any

from vllm.v1.kv_cache_interface import MambaSpec

from mkv_ascend.adapters.patching import patch


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
