# SPDX-License-Identifier: Apache-2.0
"""New blocks of attention that are zeroed because recurrent states may have been in them.

A block serves states and keys in turn. Rejected rows of a proposal's first pass are keys that were
never written, and states in float32 read as NaN in other types: masked, they count 0 times NaN,
which is NaN, and every draft token after them is wrong. vLLM has the scheduler name new blocks of
dense layers (and of no subclass of their specs), and vllm-ascend zeroes them for eagle3 only.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

from vllm.v1.core.kv_cache_coordinator import KVCacheCoordinator
from vllm.v1.kv_cache_interface import MambaSpec

from mkv_ascend.adapters.guards import expect

PATCH = "new blocks beside states"
PARAMETERS = (
    "self", "request_id", "num_tokens", "num_tokens_main_model", "num_encoder_tokens"
)  # fmt: skip


def install() -> None:
    """Let groups of windows, chunks and MLA name their new blocks, too. Idempotent."""
    original = KVCacheCoordinator.allocate_new_blocks
    if hasattr(original, "mkv_ascend_original"):
        return
    found = tuple(inspect.signature(original).parameters)
    expect(found == PARAMETERS, PATCH, f"allocate_new_blocks takes {found}, not {PARAMETERS}")

    @functools.wraps(original)
    def allocate_new_blocks(self: Any, *args: Any, **kwargs: Any) -> Any:
        allocated = original(self, *args, **kwargs)
        # Elsewhere nobody asks for these lists, and they would grow for ever.
        if self.kv_cache_config.needs_kv_cache_zeroing:
            for manager, blocks in zip(self.single_type_managers, allocated, strict=True):
                _name(manager, blocks)
        return allocated

    allocate_new_blocks.mkv_ascend_original = original  # type: ignore[attr-defined]
    KVCacheCoordinator.allocate_new_blocks = allocate_new_blocks


def _name(manager: Any, blocks: list[Any]) -> None:
    """Add new blocks to those that the scheduler has zeroed, where the manager did not."""
    named = manager.new_block_ids
    if isinstance(manager.kv_cache_spec, MambaSpec) or not blocks:
        return
    if blocks[-1].block_id not in named[-len(blocks) :]:
        named.extend(block.block_id for block in blocks)
