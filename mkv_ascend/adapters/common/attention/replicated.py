# SPDX-License-Identifier: Apache-2.0
"""Layers of a draft of which each rank keeps all keys, where ranks share those of the target's.

Under decode context parallelism vllm-ascend's attention knows neither windows nor rows that see
those behind them. A draft's layers can do without it: ranks have its key heads in common, so that
each rank attends to all keys by itself. One block of such a layer has the tokens of all ranks'
blocks with the same id. So it shares block tables with the target's layers, and costs as many times
the memory.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from vllm.model_executor.layers.attention import Attention
from vllm.v1.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec
from vllm_ascend.attention.attention_v1 import (
    AscendAttentionBackend,
    AscendAttentionBackendImpl,
    AscendAttentionMetadataBuilder,
)

from mkv_ascend.adapters.common.attention.derived import derive
from mkv_ascend.adapters.common.attention.records import BACKEND_PER_LAYER, OF_ONE_MODEL

_MADE: set[type[Any]] = set()
"""Classes that ``on_each_rank`` has made."""


@functools.cache
def on_each_rank(backend: Any) -> Any:
    """A subclass of ``backend`` whose classes know of no ranks that share keys.

    vllm-ascend chooses them once for the process. A subclass of such a class is given back.

    Raises:
        NotImplementedError: such classes are not known of this backend.
    """
    if not _MADE.isdisjoint(backend.__mro__):
        return backend
    if backend is not AscendAttentionBackend:
        raise NotImplementedError(
            f"a draft's layers on {backend.__name__} are asked to keep all keys on each rank, "
            "where ranks share those of the target (decode_context_parallel_size). Possible: "
            "layers on fused_infer_attention. Leave decode_context_parallel_size out, or choose "
            "such a draft"
        )
    members = {
        "get_impl_cls": staticmethod(lambda: AscendAttentionBackendImpl),
        "get_builder_cls": staticmethod(lambda: AscendAttentionMetadataBuilder),
    }
    made = derive(backend, "[each rank]", members, BACKEND_PER_LAYER, OF_ONE_MODEL)
    _MADE.add(made)
    return made


def keep_all_keys(layer: Any, ranks: int) -> None:
    """Let the layer ask for a cache of all keys of a sequence on each of ``ranks`` ranks."""
    layer.get_kv_cache_spec = functools.partial(_spec, layer, ranks)


def ranks_of_layer(layer: Any) -> int:
    """Ranks whose keys the layer keeps, where each keeps all of them; 1 for any other layer."""
    asked = vars(layer).get("get_kv_cache_spec") if isinstance(layer, Attention) else None
    if isinstance(asked, functools.partial) and asked.func is _spec:
        return int(asked.args[1])
    return 1


def _spec(layer: Any, ranks: int, config: Any) -> FullAttentionSpec:
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
