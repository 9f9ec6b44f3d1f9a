# SPDX-License-Identifier: Apache-2.0
"""Methods of sending tokens to experts by all numbers that they are made from.

vllm-ascend 0.30.0rc2 keeps them per process, by the number of experts. The layer that is built last
replaces those of other layers with as many, and that is the draft's.
"""

from __future__ import annotations

from typing import Any

from mkv_ascend.adapters.patching import patch

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
