# SPDX-License-Identifier: Apache-2.0
"""Caches of a draft's layers, bound as those layers take them."""

from __future__ import annotations

from typing import Any

from vllm.model_executor.layers.attention import Attention, MLAAttention
from vllm.model_executor.layers.mamba.abstract import MambaBase

from mkv_ascend.adapters.common.runner_records import PLANNED_CACHES
from mkv_ascend.adapters.patching import Patch

OF_VLLM = (Attention, MLAAttention, MambaBase)
"""Layers that take the cache tensors themselves, not a list of them."""


bind_as_layers_take = Patch(PLANNED_CACHES)


@bind_as_layers_take.also(
    target="vllm_ascend.worker.model_runner_v1:NPUModelRunner.initialize_kv_cache_tensors"
)
def _bind(original: Any, runner: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """As vllm-ascend's; vLLM's own layers take the caches themselves."""
    caches: dict[str, Any] = original(runner, *args, **kwargs)
    for name, cache in caches.items():
        layer = runner.compilation_config.static_forward_context[name]
        if isinstance(layer, OF_VLLM) and isinstance(layer.kv_cache, list):
            layer.kv_cache = cache
    return caches
