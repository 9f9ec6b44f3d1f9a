# SPDX-License-Identifier: Apache-2.0
"""vLLM's own KV cache manager, over pages that groups share."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    SlidingWindowSpec,
)

from mkv_ascend.adapters.common.kv_cache.page_shapes import with_page_shapes
from mkv_ascend.layout.component import PageShape
from tests.support import hosts

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
