# SPDX-License-Identifier: Apache-2.0
"""The target's graphs of each K, where K follows the batch size on model runner V2."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vllm.config import CUDAGraphMode

from mkv_ascend.adapters.patching import patch


@patch(
    name="graphs of verify steps of each K",
    target="vllm.v1.worker.gpu.cudagraph_utils:CudaGraphManager._init_candidates",
    reads=("vllm.v1.worker.gpu.cudagraph_utils:CudaGraphManager.dispatch",),
)
def offer_graphs_of_each_count(original: Callable[[Any], None], manager: Any) -> None:
    """Offer the smallest graph of each K that is large enough, before the graphs of any step."""
    original(manager)
    speculative = manager.vllm_config.speculative_config
    if speculative is None or not speculative.uses_dynamic_speculative_decoding():
        return
    full = sorted(
        manager._capture_descs.get(CUDAGraphMode.FULL, ()), key=lambda graph: graph.num_tokens
    )
    for (tokens, loras), offered in manager._candidates.items():
        smallest: dict[int, Any] = {}
        for graph in full:
            count = graph.uniform_token_count
            if count and graph.num_tokens >= tokens and graph.num_active_loras == loras:
                smallest.setdefault(count, graph)
        own = list(smallest.values())
        offered[:] = own + [graph for graph in offered if graph not in own]
