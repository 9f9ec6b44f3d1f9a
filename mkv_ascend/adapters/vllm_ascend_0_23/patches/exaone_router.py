# SPDX-License-Identifier: Apache-2.0
"""The experts of K-EXAONE are given scores of experts."""

from __future__ import annotations

from typing import Any

import torch

from mkv_ascend.adapters.patching import patch


@patch(
    name="router of K-EXAONE",
    target="vllm.model_executor.models.exaone_moe:ExaoneMoe.forward",
    reads=(
        "vllm.model_executor.models.exaone_moe:ExaoneMoe.__init__",
        "vllm_ascend.ops.fused_moe.fused_moe_0_23_0:AscendFusedMoE.is_internal_router",
    ),
)
def ask_the_router(original: Any, layer: Any, hidden_states: torch.Tensor) -> torch.Tensor:
    """``forward``, which asks the router where the experts do not."""
    if layer.experts.is_internal_router:
        found: torch.Tensor = original(layer, hidden_states)
        return found
    rows = hidden_states.view(-1, hidden_states.shape[-1])
    scores, _ = layer.gate(rows)
    chosen: torch.Tensor = layer.experts(hidden_states=rows, router_logits=scores)
    return chosen.view(hidden_states.shape)
