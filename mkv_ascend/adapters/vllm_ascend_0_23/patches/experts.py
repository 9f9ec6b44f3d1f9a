# SPDX-License-Identifier: Apache-2.0
"""Experts: without gates, without matrices, and the ways of tokens to them beside a draft."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
import torch_npu
from vllm.distributed import get_ep_group
from vllm.forward_context import get_forward_context
from vllm.model_executor.layers.fused_moe import FusedMoE
from vllm.model_executor.layers.fused_moe import layer as fused_moe_layer
from vllm_ascend.ascend_forward_context import _EXTRA_CTX, MoECommType
from vllm_ascend.ops.fused_moe import moe_comm_method, moe_mlp
from vllm_ascend.ops.fused_moe.moe_comm_method import FusedExpertsResult

from mkv_ascend.adapters.common.patches.experts import (
    ALLOWED,
    activated,
    has_no_gate,
    lacks_the_first_matrix,
)
from mkv_ascend.adapters.patching import patch, record, replaced

if TYPE_CHECKING:
    from torch import nn


# Experts without a gate are built, and activated without one.


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
    if not has_no_gate(activation):
        return original(*args, **kwargs)
    # All that is called of it: the two products, and the gated activation between them.
    instead = SimpleNamespace(
        npu_grouped_matmul=torch_npu.npu_grouped_matmul,
        npu_swiglu=partial(activated, activation),
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
    if lacks_the_first_matrix(shared):
        object.__setattr__(shared, "gate_up_proj", shared.up_proj)
    with replaced(fused_moe_layer, "current_platform", ALLOWED):
        original(experts, *args, **kwargs)


# Experts without matrices hand their input on, once for all ranks.


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


# Each model's own methods of sending tokens to its experts.
#
# vllm-ascend 0.23.0 keeps one set of MoE communication methods per process. Each layer with
# experts replaces it, so the last layer built counts, and that is the draft's. A target with
# another number of experts, or of experts per token, then distributes its tokens with the draft's
# numbers, or stops where an expert's index exceeds them.
#
# vllm-ascend also asks the target's configuration which of the methods a pass takes: none if the
# target has no experts. A draft with experts then takes the method that vllm-ascend takes without
# expert parallelism.

EXPERT_METHODS = record(
    name="expert methods per model",
    target=(
        "vllm_ascend.ops.fused_moe.moe_comm_method:_MoECommMethods",
        "vllm_ascend.ops.fused_moe.fused_moe_0_23_0:AscendMoERunner._forward_impl",
    ),
    reads=("vllm_ascend.ops.fused_moe.moe_comm_method:setup_moe_comm_method",),
)

Methods = dict[Any, Any]
"""Kind of communication -> its method."""


@contextlib.contextmanager
def preserve_expert_methods() -> Iterator[Methods]:
    """Restore the target's methods at the end; yields a dict that then holds the draft's."""
    current: Methods = moe_comm_method._MoECommMethods
    target, draft = dict(current), Methods()
    try:
        yield draft
    finally:
        draft.update(current)
        current.clear()
        current.update(target)


def use_methods(model: nn.Module, methods: Methods) -> None:
    """Let the layers with experts in ``model`` use ``methods`` instead of the process's."""
    for layer in model.modules():
        if isinstance(layer, FusedMoE):
            layer.runner._forward_impl = _with_methods(layer.runner._forward_impl, methods)


def _with_methods(forward: Callable[..., Any], methods: Methods) -> Callable[..., Any]:
    def forward_with_methods(*args: Any, **kwargs: Any) -> Any:
        context = get_forward_context()
        before = context.moe_comm_type, context.moe_comm_method
        kind = MoECommType.ALLGATHER if before[0] is None else before[0]
        context.moe_comm_type, context.moe_comm_method = kind, methods.get(kind)
        try:
            return forward(*args, **kwargs)
        finally:
            context.moe_comm_type, context.moe_comm_method = before

    return forward_with_methods
