# SPDX-License-Identifier: Apache-2.0
"""Mixture of experts: vllm-ascend's variants of the gating and routing operators."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from emulated_npu.operators.binding import Arguments
from emulated_npu.operators.moe_gating import SUM_OF_TWO, check_gating_top_k, gating_top_k
from emulated_npu.operators.moe_routing import (
    RoutingRequest,
    check_init_routing_arguments,
    init_routing,
)
from emulated_npu.operators.registry import operator
from emulated_npu.operators.requirements import require_range


@operator(
    "moe_gating_top_k",
    namespace="_C_ascend",
    source="vllm-ascend tests: test_npu_moe_gating_top_k; limits of op-plugin docs: "
    "torch_npu.npu_moe_gating_top_k, and of vllm-ascend's tiling for the size of groups",
    limits="x (tokens, at most 2048 experts); groups of one expert, or of two for their sum.",
)
def moe_gating_top_k(
    x: torch.Tensor,
    k: int,
    k_group: int,
    group_count: int,
    group_select_mode: int,
    renorm: int,
    norm_type: int,
    out_flag: bool,
    routed_scaling_factor: float,
    eps: float,
    bias_opt: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """See emulated_npu.operators.moe_gating.gating_top_k."""
    return gating_top_k(
        x,
        k,
        bias_opt,
        k_group=k_group,
        group_count=group_count,
        group_select_mode=group_select_mode,
        renorm=renorm,
        norm_type=norm_type,
        routed_scaling_factor=routed_scaling_factor,
        eps=eps,
    )


@moe_gating_top_k.check
def _check_moe_gating_top_k(given: Arguments) -> None:
    require_range("renorm", given.renorm, 0, 1)
    check_gating_top_k(
        given.x,
        given.k,
        given.bias_opt,
        k_group=given.k_group,
        group_count=given.group_count,
        group_select_mode=given.group_select_mode,
        norm_type=given.norm_type,
        smallest_group=2 if given.group_select_mode == SUM_OF_TWO else 1,
    )


@operator(
    "npu_moe_init_routing_custom",
    namespace="_C_ascend",
    source="vllm-ascend tests: test_moe_init_routing_custom",
    limits="x (tokens, hidden), expert_idx int32. Rows that hardware leaves undefined are zero.",
    missing="drop_pad_mode 1; quant_mode other than -1, 0, 1.",
)
def npu_moe_init_routing_custom(
    x: torch.Tensor,
    expert_idx: torch.Tensor,
    *,
    scale: torch.Tensor | None = None,
    offset: torch.Tensor | None = None,
    active_num: int = -1,
    expert_capacity: int = -1,
    expert_num: int = -1,
    drop_pad_mode: int = 0,
    expert_tokens_num_type: int = 0,
    expert_tokens_num_flag: bool = False,
    quant_mode: int = 0,
    active_expert_range: Sequence[int] = (),
    row_idx_type: int = 0,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """See emulated_npu.operators.moe_routing.init_routing."""
    request = RoutingRequest(
        active_num,
        expert_num,
        drop_pad_mode,
        expert_tokens_num_type,
        quant_mode,
        active_expert_range,
        row_idx_type,
    )
    name = "torch.ops._C_ascend.npu_moe_init_routing_custom"
    return init_routing(name, x, expert_idx, scale, offset, request)


npu_moe_init_routing_custom.check(check_init_routing_arguments)
