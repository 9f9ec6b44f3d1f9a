# SPDX-License-Identifier: Apache-2.0
"""Recipes and plans against vllm-ascend's own specs, allocation and views, where those are right.

Shapes, dtypes, strides, containers and bytes are equal for every layout that vllm-ascend 0.23.0
serves correctly.
"""

from __future__ import annotations

import pytest
import torch

# Before anything else of vllm-ascend: its modules import each other in a circle.
import vllm_ascend.ops  # noqa: F401  # isort: skip
from vllm.v1.kv_cache_interface import (
    HiddenStateCacheSpec,
)

from mkv_ascend.layout.materialize import materialize
from mkv_ascend.layout.plan import make_plan
from tests.support.caches.layer_cases import BF16, CASES, described, planned, stock
from tests.support.caches.stock_caches import NUM_BLOCKS

pytestmark = pytest.mark.host("0.23")


@pytest.mark.parametrize("case", CASES)
def test_a_plan_gives_what_vllm_ascend_gives(case: str) -> None:
    groups, shared = CASES[case]
    expected, stock_bytes = stock(groups, shared)
    plan = make_plan(planned(groups))
    made = materialize(plan.bind(NUM_BLOCKS), torch.device("npu:0"))
    assert {name: described(cache) for name, cache in made.caches.items()} == {
        name: described(cache) for name, cache in expected.items()
    }
    assert plan.bytes_per_block * NUM_BLOCKS == stock_bytes


def test_hidden_states_as_vllm_ascend_gives_them() -> None:
    from vllm.model_executor.models.extract_hidden_states import CacheOnlyAttentionBackend

    spec = HiddenStateCacheSpec(block_size=16, num_kv_heads=3, head_size=64, dtype=BF16)
    object.__setattr__(spec, "page_size_padded", 16 * 3 * 64 * 2 + 1024)
    groups = [[("cache_only_layers.0", spec, CacheOnlyAttentionBackend)]]
    expected, stock_bytes = stock(groups, shared=False)
    plan = make_plan(planned(groups))
    made = materialize(plan.bind(NUM_BLOCKS), torch.device("npu:0"))
    assert described(made.caches["cache_only_layers.0"]) == described(
        expected["cache_only_layers.0"]
    )
    assert plan.bytes_per_block * NUM_BLOCKS == stock_bytes
