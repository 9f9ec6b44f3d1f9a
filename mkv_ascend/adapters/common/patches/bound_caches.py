# SPDX-License-Identifier: Apache-2.0
"""Caches of a draft's layers, bound as those layers take them."""

from __future__ import annotations

from typing import Any

from vllm.model_executor.layers.attention import Attention, MLAAttention
from vllm.model_executor.layers.mamba.abstract import MambaBase

from mkv_ascend.adapters.patching import patch

OF_VLLM = (Attention, MLAAttention, MambaBase)
"""Layers that take the cache tensors themselves, not a list of them."""


@patch(
    name="caches of a draft beside DeepSeek-V4",
    target="vllm_ascend.worker.model_runner_v1:NPUModelRunner.initialize_kv_cache_tensors",
    writes=("kv_cache",),
    why="With that target the caches of all layers are bound in a list, as its own take them; "
    "the draft's find no keys in it.",
    until="vllm-ascend asks the layer how it takes its cache",
    test="tests/emulated/models/test_deepseek_v4.py::test_dense_draft",
)
def bind_as_layers_take(original: Any, runner: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """As vllm-ascend's; vLLM's own layers take the caches themselves."""
    caches: dict[str, Any] = original(runner, *args, **kwargs)
    for name, cache in caches.items():
        layer = runner.compilation_config.static_forward_context[name]
        if isinstance(layer, OF_VLLM) and isinstance(layer.kv_cache, list):
            layer.kv_cache = cache
    return caches
