# SPDX-License-Identifier: Apache-2.0
"""Zeroing of blocks: exactly theirs, whatever the kinds; where vllm-ascend's zeroer refuses."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

# Before anything else of vllm-ascend: its modules import each other in a circle.
import vllm_ascend.ops  # noqa: F401  # isort: skip
from vllm_ascend.ops.triton import triton_utils
from vllm_ascend.worker.utils import AscendKVBlockZeroer

from mkv_ascend.layout.component import ONE_BLOCK, PageShape
from mkv_ascend.layout.materialize import Materialized, materialize
from mkv_ascend.layout.plan import make_plan
from tests.support import hosts
from tests.support.caches.layer_cases import (
    CASES,
    GQA,
    attn,
    dense,
    planned,
)
from tests.support.caches.layouts import keys_and_values
from tests.support.caches.stock_caches import NUM_BLOCKS, Layers

pytestmark = pytest.mark.core

PlannedBlockZeroer = hosts.module("kv_cache.block_zeroer").PlannedBlockZeroer
MkvModelRunner = hosts.module("runner").MkvModelRunner
named = hosts.module("kv_cache.page_shapes").named

DEVICE = torch.device("npu:0")
BLOCKS = [1, 3]


def made_of(groups: Sequence[Layers]) -> Materialized:
    return materialize(make_plan(planned(groups)).bind(NUM_BLOCKS), DEVICE)


def tensors_of(cache: Any) -> list[torch.Tensor]:
    return [cache] if isinstance(cache, torch.Tensor) else list(cache)


def zeroed_blocks(tensor: torch.Tensor) -> list[int]:
    """Blocks without any byte set; every other must have all bytes set."""
    rows = tensor.cpu().contiguous().view(NUM_BLOCKS, -1).view(torch.int8).ne(0)
    assert torch.equal(rows.any(dim=1), rows.all(dim=1)), "a part of a block"
    return rows.any(dim=1).logical_not().nonzero().flatten().tolist()


@pytest.mark.parametrize("case", CASES)
def test_exactly_these_blocks_become_zero_in_every_layer(case: str) -> None:
    groups, _ = CASES[case]
    made = made_of(groups)
    for memory in made.raw:
        assert memory is not None
        memory.fill_(1)
    PlannedBlockZeroer(made.planes).zero_block_ids(BLOCKS)
    for cache in made.caches.values():
        for tensor in tensors_of(cache):
            assert zeroed_blocks(tensor) == BLOCKS
    # And nothing else: what aligns the buffers of a pool is not part of a block.
    zeros = sum(int(memory.eq(0).sum()) for memory in made.raw if memory is not None)
    plan = make_plan(planned(groups))
    assert zeros == len(BLOCKS) * plan.bytes_per_block


def stock_zeroer(groups: Sequence[Layers], made: Materialized) -> AscendKVBlockZeroer:
    """vllm-ascend's zeroer, told of these layers' caches as its runner tells it."""
    zeroer = AscendKVBlockZeroer(DEVICE, pin_memory=False)
    zeroer.init_meta(
        [
            SimpleNamespace(kv_cache_spec=spec, kv_cache_group_id=index, layer_names=[name])
            for index, group in enumerate(groups)
            for name, spec, _ in group
        ],
        hosts.kernel_block_sizes([128] * len(groups)),
        "auto",
        set(),
        {name: SimpleNamespace(kv_cache=cache) for name, cache in made.caches.items()},
    )
    return zeroer


def test_stock_zeroes_the_same_bytes_where_it_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    triton_utils.init_device_properties_triton()
    # vllm-ascend finds no Triton driver on the emulated NPU; its kernel runs all the same.
    cores = max(triton_utils._NUM_VECTORCORE, 1)
    monkeypatch.setattr(triton_utils, "_NUM_VECTORCORE", cores)
    groups = [attn(dense(), dense(), backend=GQA)]
    made = made_of(groups)
    after = []
    for zeroer in (stock_zeroer(groups, made), PlannedBlockZeroer(made.planes)):
        for memory in made.raw:
            assert memory is not None
            memory.fill_(1)
        zeroer.zero_block_ids(BLOCKS)
        after.append([memory.cpu() for memory in made.raw if memory is not None])
    for left, right in zip(*after, strict=True):
        assert torch.equal(left, right)


@pytest.mark.parametrize("is_shared", [False, True])
def test_blocks_are_copied_as_they_were_before_the_first_copy(is_shared: bool) -> None:
    """Each byte of a block, padding included; one block is copied and written over at once."""
    groups = [[keys_and_values("large", 4)], [keys_and_values("small", 1)]]
    shapes = [ONE_BLOCK, PageShape(2, 2) if is_shared else ONE_BLOCK]
    made = materialize(make_plan(groups, shapes=shapes).bind(NUM_BLOCKS), DEVICE)
    name, group = ("small", 1) if is_shared else ("large", 0)
    keys = made.caches[name][0]
    rows = keys.shape[0]
    keys.copy_(torch.arange(rows, device=DEVICE).view(-1, *[1] * (keys.ndim - 1)).expand_as(keys))
    pairs = [(1, 2), (2, 3)]
    zeroer = PlannedBlockZeroer(made.planes)
    zeroer.copy_blocks([(named(group, a), named(group, b)) for a, b in pairs])
    held = keys.cpu().flatten(1)[:, 0].int().tolist()
    assert held == [0, 1, 1, 2, *range(4, rows)]


def test_the_runner_zeroes_what_the_scheduler_asks_for() -> None:
    groups, _ = CASES["L10, L11 states and attention"]
    runner = MkvModelRunner.__new__(MkvModelRunner)
    bound = make_plan(planned(groups)).bind(NUM_BLOCKS)
    runner.cache_plan, runner._cache_memory = bound, materialize(bound, DEVICE)
    runner.kv_cache_config = SimpleNamespace(kv_cache_groups=[])
    runner.runner_only_attn_layers = set()
    for memory in runner._cache_memory.raw:
        assert memory is not None
        memory.fill_(1)
    runner._init_kv_zero_meta()
    runner._zero_block_ids(BLOCKS)
    for cache in runner._cache_memory.caches.values():
        assert [zeroed_blocks(tensor) for tensor in tensors_of(cache)] == [BLOCKS] * len(cache)


def test_blocks_are_zeroed_by_ids_of_their_group() -> None:
    """Where groups share pages, block 3 of one group is other bytes than that of another."""
    groups = [[keys_and_values("large", 4)], [keys_and_values("small", 1)]]
    plan = make_plan(groups, shapes=[ONE_BLOCK, PageShape(2, 2)])
    made = materialize(plan.bind(NUM_BLOCKS), DEVICE)
    for raw in made.raw:
        raw.fill_(1)
    PlannedBlockZeroer(made.planes).zero_block_ids([named(1, 3), named(1, 9)])
    for tensor in tensors_of(made.caches["small"]):
        blocks = tensor.cpu().view(torch.int8).flatten(1).ne(0).any(1)
        assert blocks.logical_not().nonzero().flatten().tolist() == [3, 9]
    zeroed = sum(int(raw.cpu().eq(0).sum()) for raw in made.raw)
    assert zeroed == 2 * groups[1][0].page_bytes
