# SPDX-License-Identifier: Apache-2.0
"""Which new blocks vLLM 0.23.0 names: those that it has zeroed, beside recurrent states."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.v1.core.kv_cache_coordinator import get_kv_cache_coordinator
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    MambaSpec,
    SlidingWindowSpec,
)

from tests.support import hosts

hosts.skip_module_unless("vllm_ascend_0_23", "vLLM 0.30.0 names new blocks of every group")
new_blocks = hosts.module("patches.prefix_hits")

SIZES = {"block_size": 128, "num_kv_heads": 1, "head_size": 64, "dtype": torch.bfloat16}
FULL = FullAttentionSpec(**SIZES)
WINDOW = SlidingWindowSpec(sliding_window=64, **SIZES)
STATE = MambaSpec(block_size=128, shapes=((3, 64),), dtypes=(torch.float32,))


def named(spec: KVCacheSpec, before: list[int], new: list[int], *, needed: bool = True) -> Any:
    """Blocks that a group's manager has named once ``new`` ones are allocated."""
    manager = SimpleNamespace(kv_cache_spec=spec, new_block_ids=list(before))
    coordinator = SimpleNamespace(
        kv_cache_config=SimpleNamespace(needs_kv_cache_zeroing=needed),
        single_type_managers=[manager],
    )
    blocks = [SimpleNamespace(block_id=block) for block in new]
    (name_new_blocks,) = new_blocks.name_new_blocks.functions.values()
    given = name_new_blocks(lambda *_: (blocks,), coordinator, "request", 300)
    assert given == (blocks,)
    return manager.new_block_ids


@pytest.mark.parametrize("spec", [FULL, WINDOW], ids=["full", "window"])
def test_every_new_block_is_named_once(spec: KVCacheSpec) -> None:
    assert named(spec, [7], [3, 5]) == [7, 3, 5]
    # vLLM has named those of dense layers by then.
    assert named(spec, [7, 3, 5], [3, 5]) == [7, 3, 5]
    assert named(spec, [7], []) == [7]


def test_states_and_engines_that_zero_nothing_name_none() -> None:
    assert named(STATE, [], [3, 5]) == []
    assert named(WINDOW, [], [3, 5], needed=False) == []


def test_names_that_nobody_takes_are_not_kept() -> None:
    """vLLM's own managers name blocks of dense layers in engines that zero nothing."""
    groups = [KVCacheGroupSpec([name], spec) for name, spec in (("a", FULL), ("b", WINDOW))]
    config = KVCacheConfig(num_blocks=20, kv_cache_tensors=[], kv_cache_groups=groups)
    assert not config.needs_kv_cache_zeroing
    coordinator = get_kv_cache_coordinator(
        config,
        max_model_len=512,
        max_num_batched_tokens=512,
        use_eagle=False,
        enable_caching=False,
        enable_kv_cache_events=False,
        dcp_world_size=1,
        pcp_world_size=1,
        scheduler_block_size=128,
        hash_block_size=128,
    )
    allocate = type(coordinator).allocate_new_blocks
    (name_new_blocks,) = new_blocks.name_new_blocks.functions.values()
    allocated = name_new_blocks(allocate, coordinator, "request", 300, 300)
    assert [len(blocks) for blocks in allocated] == [3, 3]
    kept = [manager.new_block_ids for manager in coordinator.single_type_managers]
    assert kept == [[], []]
