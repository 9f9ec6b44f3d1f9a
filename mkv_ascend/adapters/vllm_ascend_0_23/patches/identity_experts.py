# SPDX-License-Identifier: Apache-2.0
"""Experts without matrices hand their input on, once for all ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from vllm.distributed import get_ep_group
from vllm_ascend.ascend_forward_context import _EXTRA_CTX, MoECommType
from vllm_ascend.ops.fused_moe.moe_comm_method import FusedExpertsResult

from mkv_ascend.adapters.patching import patch


@patch(
    name="experts without matrices",
    target=(
        "vllm_ascend.ops.fused_moe.fused_moe_0_23_0:AscendFusedMoE.__init__",
        "vllm_ascend.ops.fused_moe.fused_moe:zero_experts_compute",
    ),
    reads=(
        "vllm_ascend.ops.fused_moe.fused_moe:AscendUnquantizedFusedMoEMethod.apply",
        "vllm_ascend.ops.fused_moe.moe_comm_method:FusedExpertsResult",
        "vllm.model_executor.layers.fused_moe.router.router_factory:create_fused_moe_router",
    ),
)
def tell_the_layer(original: Any, experts: Any, *args: Any, **kwargs: Any) -> None:
    """``AscendFusedMoE.__init__``: the layer knows of its experts without matrices.

    Raises:
        NotImplementedError: they are of a kind, or beside experts of a format, that nobody judged.
    """
    kind = kwargs.pop("zero_expert_type", None)
    # vLLM gives a layer without this argument a router that expects no output of such experts.
    original(experts, *args, **kwargs)
    if kind is None:
        return
    if kind != "identity" or experts.quant_config is not None:
        raise NotImplementedError(
            f"the layer {experts.layer_name} has experts without matrices of the type {kind!r} "
            f"beside experts {'without' if experts.quant_config is None else 'with'} quantisation; "
            "mkv_ascend serves those of the type 'identity' beside experts that are not "
            "quantised. Use a checkpoint in bfloat16"
        )
    experts.zero_expert_type = kind
    experts.zero_expert_num = experts.e_score_correction_bias.shape[0] - kwargs["num_experts"]


@tell_the_layer.also(target="vllm_ascend.ops.fused_moe.fused_moe:zero_experts_compute")
def _to_be_added(
    original: Any, *args: Any, **kwargs: Any
) -> tuple[torch.Tensor, torch.Tensor, HandedOn]:
    """``zero_experts_compute``, whose third result can be added to that of the other experts."""
    ids, weights, rows = original(*args, **kwargs)
    return ids, weights, HandedOn(rows)


@dataclass(frozen=True)
class HandedOn:
    """``rows``: what experts without matrices give for each token that this rank has."""

    rows: torch.Tensor

    def __radd__(self, others: FusedExpertsResult) -> FusedExpertsResult:
        """``others`` with ``rows`` added, where that is this rank's to do."""
        if rows_are_this_ranks_alone():
            others.routed_out.add_(self.rows)
        return others


def rows_are_this_ranks_alone() -> bool:
    """Whether no other rank adds the same rows to the sum of all ranks' results.

    Where tokens are gathered, each rank gives every token the part of its experts, or of its slice
    of each expert, and these parts are summed up. The other methods deal tokens out to ranks.
    """
    gathered = _EXTRA_CTX.moe_comm_type == MoECommType.ALLGATHER
    return not gathered or get_ep_group().rank_in_group == 0
