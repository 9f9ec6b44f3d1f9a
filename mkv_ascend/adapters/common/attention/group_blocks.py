# SPDX-License-Identifier: Apache-2.0
"""MLA's metadata builders with the block size of their own KV group.

vllm-ascend 0.23.0 takes it from the cache configuration, which has one block size for all groups.
So chunks of a cached context are cut, and workspaces reserved, by the blocks of another group.
"""

from __future__ import annotations

import copy
import functools
from typing import Any

from mkv_ascend.adapters.common.attention.derived import derive
from mkv_ascend.adapters.common.attention.records import OF_ONE_MODEL


@functools.cache
def builder(base: type[Any]) -> type[Any]:
    """A subclass of the metadata builder ``base`` that sees its group's block size."""

    def initialise(
        self: Any, kv_cache_spec: Any, layer_names: Any, vllm_config: Any, *args: Any, **kwargs: Any
    ) -> None:
        config = _with_block_size(vllm_config, kv_cache_spec.block_size)
        base.__init__(self, kv_cache_spec, layer_names, config, *args, **kwargs)

    return derive(base, "", {"__init__": initialise}, OF_ONE_MODEL)


def _with_block_size(config: Any, block_size: int) -> Any:
    """A copy of ``config`` with blocks of ``block_size`` tokens."""
    if config.cache_config.block_size == block_size:
        return config
    view, cache = copy.copy(config), copy.copy(config.cache_config)
    cache.block_size = block_size
    view.cache_config = cache
    return view
