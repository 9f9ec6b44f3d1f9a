# SPDX-License-Identifier: Apache-2.0
"""Which new blocks the scheduler has zeroed, beside recurrent states on vLLM 0.23.0."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheSpec,
    MambaSpec,
    SlidingWindowSpec,
)

from tests.support import hosts

hosts.skip_module_unless("vllm_ascend_0_23", "vLLM 0.30.0 names new blocks of every group")
new_blocks = hosts.module("patches.new_blocks")

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
