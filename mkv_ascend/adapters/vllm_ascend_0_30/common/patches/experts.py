# SPDX-License-Identifier: Apache-2.0
"""Experts: without gates, and the ways of tokens to them beside a draft."""

from __future__ import annotations

from typing import Any

import torch
from vllm.model_executor.layers.fused_moe import config

from mkv_ascend.adapters.common.patches.experts import (
    ALLOWED,
    activated,
    has_no_gate,
    lacks_the_first_matrix,
)
from mkv_ascend.adapters.patching import patch, replaced

# Experts without a gate are built, and activated without one.


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
    if has_no_gate(given.activation):
        return activated(given.activation, rows)
    found: torch.Tensor = original(given, rows, quant_method)
    return found


@activate_all_rows.also(
    target="vllm_ascend.ops.fused_moe.shared_experts:AscendSharedExperts.__init__"
)
def _name_the_first_matrix(
    original: Any, shared: Any, layer: Any, *args: Any, **kwargs: Any
) -> None:
    """``AscendSharedExperts.__init__``, which asks for a matrix with a gate."""
    if lacks_the_first_matrix(layer):
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
    with replaced(config, "current_platform", ALLOWED):
        original(given)


# Methods of sending tokens to experts by all numbers that they are made from.
#
# vllm-ascend 0.30.0rc2 keeps them per process, by the number of experts. The layer that is built
# last replaces those of other layers with as many, and that is the draft's.

NUMBERS = (
    "experts_per_token",
    "swiglu_limit",
    "swiglu_alpha",
    "swiglu_beta",
    "activation_situ_beta",
    "activation_situ_linear_beta",
)
"""What methods take of the layer's ``FusedMoEConfig`` beside its numbers of experts."""


@patch(
    name="expert methods by all numbers",
    target="vllm_ascend.ops.fused_moe.moe_comm_method:_moe_config_key",
    reads=(
        "vllm_ascend.ops.fused_moe.moe_comm_method:AllGatherCommImpl",
        "vllm_ascend.ops.fused_moe.moe_comm_method:AlltoAllCommImpl",
        "vllm_ascend.ops.fused_moe.moe_comm_method:MC2CommImpl",
        "vllm_ascend.ops.fused_moe.moe_comm_method:FusedMC2CommImpl",
        "vllm_ascend.ops.fused_moe.dataclass.moe_mlp:build_mlp_compute_input",
    ),
)
def key_of_all_numbers(original: Any, kind: Any, config: Any) -> Any:
    """The key of methods of a kind for a layer's ``FusedMoEConfig``, or for none."""
    return (*original(kind, config), *(getattr(config, name, None) for name in NUMBERS))
