# SPDX-License-Identifier: Apache-2.0
"""vLLM's own KV cache manager over pages that groups share."""

from __future__ import annotations

import dataclasses
import inspect
import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    SlidingWindowSpec,
)
from vllm.v1.request import Request

from mkv_ascend.adapters.common.kv_cache.page_blocks import GroupBlocks, PageBlocks
from mkv_ascend.adapters.common.kv_cache.page_shapes import (
    ids_by_group,
    named,
    page_shapes_of,
    with_page_shapes,
)
from mkv_ascend.layout.component import ONE_BLOCK, PageShape
from tests.support import hosts

# vLLM's own KV cache manager, over pages that groups share.


engine_core = hosts.module("kv_cache.engine_core")
BLOCK, WINDOW, LONGEST = 4, 9, 64
SIZES = {"block_size": BLOCK, "num_kv_heads": 1, "head_size": 16, "dtype": torch.bfloat16}


def dense() -> FullAttentionSpec:
    return FullAttentionSpec(**SIZES)


def window() -> SlidingWindowSpec:
    return SlidingWindowSpec(sliding_window=WINDOW, **SIZES)


def manager_of(
    specs: Sequence[Any], pages: int, shapes: Sequence[PageShape], longest: int, *, events: bool
) -> Any:
    """vLLM's manager of a group of each spec; it admits ``LONGEST`` tokens in a step."""
    groups = [KVCacheGroupSpec([f"layer.{index}"], spec) for index, spec in enumerate(specs)]
    config = with_page_shapes(KVCacheConfig(pages, [], groups), shapes)
    budget = {"max_num_batched_tokens", "max_in_flight_tokens"}
    (name,) = budget & inspect.signature(KVCacheManager.__init__).parameters.keys()
    manager = KVCacheManager.__new__(KVCacheManager)
    # Other tests of the process may have put it in place, and other patches around it.
    original = inspect.unwrap(KVCacheManager.__init__)
    engine_core._give_pages(
        original,
        manager,
        config,
        max_model_len=longest,
        scheduler_block_size=BLOCK,
        hash_block_size=BLOCK,
        enable_caching=True,
        enable_kv_cache_events=events,
        **{name: LONGEST},
    )
    return manager


pytestmark = pytest.mark.core


def make(pages: int, shapes: tuple[PageShape, PageShape], *, events: bool = False) -> Any:
    """A manager of a dense group and one of windows."""
    return manager_of((dense(), window()), pages, shapes, LONGEST, events=events)


def test_a_configuration_of_fewer_groups_keeps_their_shapes() -> None:
    """vLLM and vllm-ascend make such for groups in whose blocks nothing can be found again."""
    groups = [KVCacheGroupSpec([name], FullAttentionSpec(**SIZES)) for name in "abc"]
    shapes = [PageShape(2, 1), PageShape(1, 3), PageShape()]
    whole = with_page_shapes(KVCacheConfig(8, [], groups), shapes)
    assert page_shapes_of(whole) == tuple(shapes)
    assert page_shapes_of(dataclasses.replace(whole, kv_cache_groups=groups[1:])) == (*shapes[1:],)


@pytest.fixture(autouse=True)
def hashes() -> None:
    init_none_hash(sha256)


def request(name: str, tokens: int, first: int = 0) -> Request:
    return Request(
        name,
        [first + number for number in range(tokens)],
        SamplingParams(max_tokens=8),
        None,
        block_hasher=get_request_block_hasher(BLOCK, sha256),
    )


def begin(manager: Any, one: Request) -> int | None:
    """Tokens that were found; None where there is no room."""
    found, hit = manager.get_computed_blocks(one)[:2]
    allocated = manager.allocate_slots(one, one.num_tokens - hit, hit, found)
    return None if allocated is None else hit


SHAPES = PageShape(2, 3), PageShape(1, 2)


def test_groups_take_pages_and_give_them_back() -> None:
    manager = make(8, SHAPES)
    pool = manager.block_pool
    assert isinstance(pool, PageBlocks)
    assert pool is manager.coordinator.block_pool
    first = request("first", 24)
    # Six dense blocks are a page, and six of the windows', which are behind no window yet, three.
    assert begin(manager, first) == 0
    assert (pool.get_num_free_blocks(), manager.usage) == (3, pytest.approx(4 / 7))
    assert manager.get_block_ids("first")[0] == [2, 3, 18, 19, 34, 35]
    second = request("second", 24, first=100)
    assert begin(manager, second) is None
    manager.free(first)
    assert begin(manager, second) == 0
    manager.free(second)
    assert pool.get_num_free_blocks() == 7


def test_prefixes_are_found_until_their_page_is_taken() -> None:
    manager = make(12, SHAPES)
    first = request("first", 25)
    begin(manager, first)
    manager.free(first)
    again = request("again", 25)
    assert begin(manager, again) == 24
    manager.free(again)
    for number in range(1, 4):
        other = request(f"other {number}", 60, first=100 * number)
        if begin(manager, other) is not None:
            manager.free(other)
    assert begin(manager, request("last", 25)) == 0


def test_prefixes_are_reset_once_and_in_all_groups() -> None:
    manager = make(12, SHAPES, events=True)
    first = request("first", 25)
    begin(manager, first)
    assert not manager.reset_prefix_cache()
    manager.free(first)
    manager.take_events()
    assert manager.reset_prefix_cache()
    assert [type(event).__name__ for event in manager.take_events()] == ["AllBlocksCleared"]
    assert begin(manager, request("again", 25)) == 0


def test_hits_in_more_pages_than_there_are_do_not_keep_a_request_waiting() -> None:
    manager = make(14, (PageShape(4, 1), PageShape(1, 1)))
    dense = manager.coordinator.single_type_managers[0].block_pool
    first, others = request("first", 40), []
    for _ in range(8):
        # Others have the rest of the page of each dense block.
        assert manager.allocate_slots(first, BLOCK) is not None
        first.num_computed_tokens += BLOCK
        others += dense.get_new_blocks(3)
    dense.free_blocks(others)
    manager.free(first)
    assert manager.block_pool.pages.used_pages == 0
    again, hits = request("again", 56), []
    for _ in range(2):
        found, hit = manager.get_computed_blocks(again)[:2]
        fits = manager.allocate_slots(again, 16, hit, found) is not None
        hits.append((hit, fits))
    assert hits == [(32, False), (0, True)]


def test_an_impossible_number_stays_impossible(monkeypatch: pytest.MonkeyPatch) -> None:
    def wait(self: Any, *_: Any, **__: Any) -> int:
        assert isinstance(self.block_pool, GroupBlocks)
        return self.block_pool.num_gpu_blocks + 2

    monkeypatch.setattr(FullAttentionManager, "get_num_blocks_to_allocate", wait)
    manager = make(8, SHAPES)
    assert begin(manager, request("first", 5)) is None
    assert not manager.block_pool.pages.is_closed
    assert manager.block_pool.pages.promised[0] == 0


def test_blocks_are_named_with_their_group() -> None:
    names = [named(0, 7), named(3, 7), named(0, 2**31 - 1)]
    assert ids_by_group(names) == {0: [7, 2**31 - 1], 3: [7]}
    manager = make(8, SHAPES)
    begin(manager, request("first", 24))
    (_, windows) = manager.coordinator.single_type_managers
    windows.new_block_ids[:] = manager.get_block_ids("first")[1]
    assert ids_by_group(manager.take_new_block_ids())[1] == manager.get_block_ids("first")[1]


def test_nothing_is_asked_by_an_id_alone() -> None:
    pool = make(8, SHAPES).block_pool
    with pytest.raises(TypeError, match="which group's"):
        pool.blocks[3]
    with pytest.raises(TypeError, match="no group"):
        pool.get_new_blocks(1)


def test_a_block_that_is_a_page_is_vllms_own() -> None:
    manager = make(8, (PageShape(), PageShape()))
    assert not isinstance(manager.block_pool, PageBlocks)


# Prefix hits on a trace of requests that share prefixes, beside vLLM's pool in as much memory.
#
# Ten layers keep all tokens, and fifty a window. vLLM splits them into six groups of ten. Here they
# are two, and a page holds a block of the windows, or five of the dense layers.
SPLIT = 5
"""Groups of windows that vLLM makes of one."""
PREFIX, PREFIXES, REQUESTS, MOST_TOKENS = 240, 24, 250, 512
BLOCKS = PREFIXES * (PREFIX // BLOCK + SPLIT * 3)
"""Of vLLM's groups, that hold all prefixes: a window needs three at the end of one."""


def trace(seed: int) -> list[tuple[int, int]]:
    """The prefix of each request, every other time a recent one, and how many tokens follow it."""
    chance, found = random.Random(seed), list[tuple[int, int]]()
    for _ in range(REQUESTS):
        is_recent = found and chance.random() < 0.5
        prefix = chance.choice(found[-6:])[0] if is_recent else chance.randrange(PREFIXES)
        found.append((prefix, chance.randint(8, 40)))
    return found


def request_of_trace(number: int, prefix: int, tail: int) -> Request:
    tokens = [prefix * 1000 + place for place in range(PREFIX)]
    tokens += [10**6 + number * 100 + place for place in range(tail)]
    hasher = get_request_block_hasher(BLOCK, sha256)
    return Request(str(number), tokens, SamplingParams(max_tokens=8), None, block_hasher=hasher)


def found_tokens(manager: Any, seed: int, at_once: int) -> int:
    """Tokens that all requests of a trace find; the oldest end where there is no room."""
    found, running = 0, list[Request]()
    for number, (prefix, tail) in enumerate(trace(seed)):
        one = request_of_trace(number, prefix, tail)
        while one.num_computed_tokens < one.num_tokens:
            blocks, hit = None, 0
            if not one.num_computed_tokens:
                blocks, hit = manager.get_computed_blocks(one)[:2]
            step = min(LONGEST, one.num_tokens - one.num_computed_tokens - hit)
            if manager.allocate_slots(one, step, hit, blocks) is None:
                manager.free(running.pop(0))
                continue
            one.num_computed_tokens += hit + step
            found += hit
        running.append(one)
        if len(running) > at_once:
            manager.free(running.pop(0))
    return found


@pytest.mark.parametrize("at_once", [1, 4])
def test_hits_are_not_fewer_with_memory_for_a_third_of_the_prefixes(at_once: int) -> None:
    init_none_hash(sha256)
    blocks = BLOCKS // 3
    found = []
    for seed in (1, 2, 3):
        split = manager_of(
            [dense(), *[window()] * SPLIT],
            blocks,
            [ONE_BLOCK] * (1 + SPLIT),
            MOST_TOKENS,
            events=False,
        )
        shapes = PageShape(1, SPLIT), ONE_BLOCK
        pages = blocks // SPLIT
        shared = manager_of([dense(), window()], pages, shapes, MOST_TOKENS, events=False)
        found.append([found_tokens(manager, seed, at_once) for manager in (split, shared)])
    stock, ours = map(sum, zip(*found, strict=True))
    assert ours >= stock > 0
