# SPDX-License-Identifier: Apache-2.0
"""Layers of a draft of which each rank keeps all keys, where ranks share those of the target's.

Under decode context parallelism vllm-ascend's attention knows neither windows nor rows that see
those behind them. A draft's layers can do without it: ranks have its key heads in common, so that
each rank attends to all keys by itself. Their caches: ``kv_cache/replicated_specs.py``.
"""

from __future__ import annotations

import functools
from typing import Any

from vllm_ascend.attention.attention_v1 import (
    AscendAttentionBackend,
    AscendAttentionBackendImpl,
    AscendAttentionMetadataBuilder,
)

from mkv_ascend.adapters.common.attention.derived import derive
from mkv_ascend.adapters.common.attention.records import BACKEND_PER_LAYER, OF_ONE_MODEL
from mkv_ascend.adapters.common.kv_cache.replicated_specs import spec_of_all_keys

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
    layer.get_kv_cache_spec = functools.partial(spec_of_all_keys, layer, ranks)
