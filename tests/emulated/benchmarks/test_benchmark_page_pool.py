# SPDX-License-Identifier: Apache-2.0
"""The benchmark of shared pages compares our pool with vLLM's own, on all that it names."""

from __future__ import annotations

import pytest
from vllm.v1.core.block_pool import BlockPool

from benchmarks import page_pool
from mkv_ascend.adapters.common.kv_cache.page_blocks import PageBlocks

pytestmark = pytest.mark.core


def test_each_part_of_both_pools_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_pool, "PAIRS", 1)
    found = page_pool.ratios(requests=2, shared=2, stock=3)
    assert list(found) == [*page_pool.PARTS, "all"]
    assert all(ratio > 0 for ratio in found.values())


@pytest.mark.parametrize("groups", [2, 3])
def test_one_is_ours_and_the_other_vllms(groups: int) -> None:
    ours, theirs = (
        page_pool._scheduler(groups, 2, is_shared=is_shared).kv_cache_manager.block_pool
        for is_shared in (True, False)
    )
    assert type(ours) is PageBlocks
    assert type(theirs) is BlockPool
