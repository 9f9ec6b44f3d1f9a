# SPDX-License-Identifier: Apache-2.0
"""Experts without a gate are built, and activated without one."""

from __future__ import annotations

from typing import Any

import torch
from vllm.model_executor.layers.fused_moe import config

from mkv_ascend.adapters.common import experts_without_gates
from mkv_ascend.adapters.patching import patch, replaced


@patch(
    name="experts without gates",
    target=(
        "vllm_ascend.ops.fused_moe.moe_mlp:_unified_apply_activation",
        "vllm_ascend.ops.fused_moe.shared_experts:AscendSharedExperts.__init__",
        "vllm.model_executor.layers.fused_moe.config:FusedMoEConfig.__post_init__",
    ),
    reads=(
        "vllm_ascend.ops.fused_moe.shared_experts:AscendSharedExperts.part1",
        "vllm.model_executor.layers.fused_moe.activation:MoEActivation.is_gated",
        "vllm.model_executor.layers.fused_moe.activation:apply_moe_activation",
    ),
)
def activate_all_rows(
    original: Any, given: Any, rows: torch.Tensor, quant_method: Any
) -> torch.Tensor:
    """``_unified_apply_activation`` with vLLM's own activation where there is no gate."""
    if experts_without_gates.has_no_gate(given.activation):
        return experts_without_gates.activated(given.activation, rows)
    found: torch.Tensor = original(given, rows, quant_method)
    return found


@activate_all_rows.also(
    target="vllm_ascend.ops.fused_moe.shared_experts:AscendSharedExperts.__init__"
)
def _name_the_first_matrix(
    original: Any, shared: Any, layer: Any, *args: Any, **kwargs: Any
) -> None:
    """``AscendSharedExperts.__init__``, which asks for a matrix with a gate."""
    if experts_without_gates.lacks_the_first_matrix(layer):
        object.__setattr__(layer, "gate_up_proj", layer.up_proj)
    original(shared, layer, *args, **kwargs)


@activate_all_rows.also(
    target="vllm.model_executor.layers.fused_moe.config:FusedMoEConfig.__post_init__"
)
def _build_on_this_device(original: Any, given: Any) -> None:
    """``FusedMoEConfig.__post_init__``, which asks the platform only whether it may go on."""
    if given.is_act_and_mul:
        original(given)
        return
    with replaced(config, "current_platform", experts_without_gates.ALLOWED):
        original(given)
