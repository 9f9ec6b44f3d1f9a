# SPDX-License-Identifier: Apache-2.0
"""Caches of a draft's layers of which each rank keeps all keys, where ranks share the target's.

One block of such a layer has the tokens of all ranks' blocks with the same id. So it shares block
tables with the target's layers, and costs as many times the memory. An engine core imports this
module: it must not import vllm-ascend's attention, whose modules go in a circle there.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from vllm.model_executor.layers.attention import Attention
from vllm.v1.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec


def ranks_of_layer(layer: Any) -> int:
    """Ranks whose keys the layer keeps, where each keeps all of them; 1 for any other layer."""
    asked = vars(layer).get("get_kv_cache_spec") if isinstance(layer, Attention) else None
    if isinstance(asked, functools.partial) and asked.func is spec_of_all_keys:
        return int(asked.args[1])
    return 1


def spec_of_all_keys(layer: Any, ranks: int, config: Any) -> FullAttentionSpec:
    """The layer's spec, with the heads of all ranks.

    A spec counts the tokens of a share: so many rows of all ranks' heads have the bytes that all
    tokens take. The scheduler gives no blocks back behind a window, as it could for no other layer
    of a group in which ranks share keys.
    """
    own = type(layer).get_kv_cache_spec(layer, config)
    heads = own.num_kv_heads * ranks
    if isinstance(own, FullAttentionSpec):
        return dataclasses.replace(own, num_kv_heads=heads, sliding_window=None)
    assert isinstance(own, SlidingWindowSpec), own
    return FullAttentionSpec(
        block_size=own.block_size, num_kv_heads=heads, head_size=own.head_size, dtype=own.dtype
    )
