# SPDX-License-Identifier: Apache-2.0
"""Experts without a gate are built, and activated without one."""

from __future__ import annotations

import inspect
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch_npu
from vllm.model_executor.layers.fused_moe import layer
from vllm_ascend.ops.fused_moe import moe_mlp

from mkv_ascend.adapters.common import experts_without_gates
from mkv_ascend.adapters.patching import patch, replaced


@patch(
    name="experts without gates",
    target=(
        "vllm_ascend.ops.fused_moe.moe_mlp:unquant_apply_mlp",
        "vllm_ascend.ops.fused_moe.fused_moe_0_23_0:AscendFusedMoE.__init__",
    ),
    reads=(
        "vllm_ascend.ops.fused_moe.fused_moe_0_23_0:AscendFusedMoE._shared_experts_part1",
        "vllm.model_executor.layers.fused_moe.activation:MoEActivation.is_gated",
        "vllm.model_executor.layers.fused_moe.activation:apply_moe_activation",
    ),
)
def activate_all_rows(original: Any, *args: Any, **kwargs: Any) -> Any:
    """``unquant_apply_mlp`` with vLLM's own activation where there is no gate."""
    activation = inspect.signature(original).bind(*args, **kwargs).arguments.get("activation")
    if not experts_without_gates.has_no_gate(activation):
        return original(*args, **kwargs)
    # All that is called of it: the two products, and the gated activation between them.
    instead = SimpleNamespace(
        npu_grouped_matmul=torch_npu.npu_grouped_matmul,
        npu_swiglu=partial(experts_without_gates.activated, activation),
    )
    with replaced(moe_mlp, "torch_npu", instead):
        return original(*args, **kwargs)


@activate_all_rows.also(target="vllm_ascend.ops.fused_moe.fused_moe_0_23_0:AscendFusedMoE.__init__")
def _build_on_this_device(original: Any, experts: Any, *args: Any, **kwargs: Any) -> None:
    """``AscendFusedMoE.__init__``, whose base asks the platform only whether it may go on."""
    if kwargs.get("is_act_and_mul", True):
        original(experts, *args, **kwargs)
        return
    shared: Any = kwargs.get("shared_experts")
    if experts_without_gates.lacks_the_first_matrix(shared):
        object.__setattr__(shared, "gate_up_proj", shared.up_proj)
    with replaced(layer, "current_platform", experts_without_gates.ALLOWED):
        original(experts, *args, **kwargs)
