# SPDX-License-Identifier: Apache-2.0
"""Prefix hits on a trace of requests that share prefixes, beside vLLM's pool in as much memory.

Ten layers keep all tokens, and fifty a window. vLLM splits them into six groups of ten. Here they
are two, and a page holds a block of the windows, or five of the dense layers.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.request import Request

from mkv_ascend.layout.component import ONE_BLOCK, PageShape
from tests.support.caches.page_managers import BLOCK, LONGEST, dense, manager_of, window

pytestmark = pytest.mark.core
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


def request(number: int, prefix: int, tail: int) -> Request:
    tokens = [prefix * 1000 + place for place in range(PREFIX)]
    tokens += [10**6 + number * 100 + place for place in range(tail)]
    hasher = get_request_block_hasher(BLOCK, sha256)
    return Request(str(number), tokens, SamplingParams(max_tokens=8), None, block_hasher=hasher)


def found_tokens(manager: Any, seed: int, at_once: int) -> int:
    """Tokens that all requests of a trace find; the oldest end where there is no room."""
    found, running = 0, list[Request]()
    for number, (prefix, tail) in enumerate(trace(seed)):
        one = request(number, prefix, tail)
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
