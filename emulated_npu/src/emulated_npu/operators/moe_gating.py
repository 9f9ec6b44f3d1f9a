# SPDX-License-Identifier: Apache-2.0
"""Mixture of experts: which experts serve a token, and with what weight."""

from __future__ import annotations

import torch

from emulated_npu.operators.binding import Arguments
from emulated_npu.operators.registry import operator
from emulated_npu.operators.requirements import (
    FLOATS,
    require,
    require_dtype,
    require_range,
    require_rank,
    require_same_dtype,
    require_shape,
)

SOFTMAX, SIGMOID = 0, 1
MAXIMUM, SUM_OF_TWO = 0, 1
MAX_EXPERTS = 2048
# The kernel sorts groups that are padded to this many experts.
GROUP_ALIGNMENT = 32


def gating_top_k(
    x: torch.Tensor,
    k: int,
    bias: torch.Tensor | None,
    *,
    k_group: int,
    group_count: int,
    group_select_mode: int,
    renorm: int,
    norm_type: int,
    routed_scaling_factor: float,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Choose k experts for each row of x (tokens, experts).

    Scores are the softmax or sigmoid of x. bias is added for the choice only, not to the weights.
    With groups, only experts of the k_group best groups can be chosen; a group counts as its best
    expert or the sum of its best two. Equal scores: the lower index. Weights are divided by their
    sum for sigmoid or if `renorm`, then multiplied by routed_scaling_factor.

    Returns weights (tokens, k) in x's dtype, expert indices int32 (tokens, k), and all scores
    without bias, float32 (tokens, experts).
    """
    wide = x.float()
    scores = wide.softmax(-1) if norm_type == SOFTMAX else wide.sigmoid()
    ranking = scores if bias is None else scores + bias.float()
    if group_count > 1:
        ranking = _keep_best_groups(ranking, k_group, group_count, group_select_mode)
    chosen = ranking.sort(dim=-1, descending=True, stable=True).indices[:, :k]
    weights = scores.gather(1, chosen)
    if norm_type == SIGMOID or renorm:
        weights = weights / (weights.sum(-1, keepdim=True) + eps)
    return (weights * routed_scaling_factor).to(x.dtype), chosen.to(torch.int32), scores


def _keep_best_groups(
    ranking: torch.Tensor, k_group: int, group_count: int, group_select_mode: int
) -> torch.Tensor:
    groups = ranking.unflatten(1, (group_count, -1))
    if group_select_mode == MAXIMUM:
        group_scores = groups.amax(-1)
    else:
        group_scores = groups.topk(2, -1).values.sum(-1)
    best = group_scores.sort(dim=-1, descending=True, stable=True).indices[:, :k_group]
    kept = torch.zeros_like(group_scores, dtype=torch.bool).scatter_(1, best, True)
    return groups.masked_fill(~kept.unsqueeze(-1), float("-inf")).flatten(1)


def check_gating_top_k(
    x: torch.Tensor,
    k: int,
    bias: torch.Tensor | None,
    *,
    k_group: int,
    group_count: int,
    group_select_mode: int,
    norm_type: int,
    smallest_group: int = 3,
) -> None:
    """What op-plugin's page of npu_moe_gating_top_k asks; others may take smaller groups."""
    require_rank("x", x, 2)
    require_dtype("x", x, FLOATS)
    experts = x.shape[1]
    require_range("the number of experts", experts, 1, MAX_EXPERTS)
    require(
        norm_type in (SOFTMAX, SIGMOID), f"norm_type is {norm_type}; it must be 0 (softmax) or 1"
    )
    require(
        group_select_mode in (MAXIMUM, SUM_OF_TWO),
        f"group_select_mode is {group_select_mode}; it must be 0 (maximum) or 1 (sum of two)",
    )
    require(
        group_count > 0 and experts % group_count == 0 and experts // group_count >= smallest_group,
        f"group_count is {group_count}; it must divide the {experts} experts into groups of "
        f"{smallest_group} or more",
    )
    size = experts // group_count
    padded = -(-size // GROUP_ALIGNMENT) * GROUP_ALIGNMENT * group_count
    require_range("group_count * group size, padded to 32,", padded, 1, MAX_EXPERTS)
    require_range("k_group", k_group, 1, group_count)
    require_range("k", k, 1, size * k_group)
    if bias is not None:
        require_same_dtype(x=x, bias=bias)
        require_shape("bias", bias, (experts,))


@operator(
    "npu_moe_gating_top_k",
    source="op-plugin docs: torch_npu.npu_moe_gating_top_k",
    limits="x (tokens, at most 2048 experts), groups of more than 2 experts; renorm 0.",
)
def npu_moe_gating_top_k(
    x: torch.Tensor,
    k: int,
    *,
    bias: torch.Tensor | None = None,
    k_group: int = 1,
    group_count: int = 1,
    group_select_mode: int = 0,
    renorm: int = 0,
    norm_type: int = 0,
    out_flag: bool = False,
    routed_scaling_factor: float = 1.0,
    eps: float = 1e-20,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """See gating_top_k. The third result is only meaningful if out_flag."""
    return gating_top_k(
        x,
        k,
        bias,
        k_group=k_group,
        group_count=group_count,
        group_select_mode=group_select_mode,
        renorm=renorm,
        norm_type=norm_type,
        routed_scaling_factor=routed_scaling_factor,
        eps=eps,
    )


@npu_moe_gating_top_k.check
def _check_npu_moe_gating_top_k(given: Arguments) -> None:
    require(given.renorm == 0, f"renorm is {given.renorm}; it must be 0")
    check_gating_top_k(
        given.x,
        given.k,
        given.bias,
        k_group=given.k_group,
        group_count=given.group_count,
        group_select_mode=given.group_select_mode,
        norm_type=given.norm_type,
    )


@operator(
    "npu_moe_gating_top_k_softmax",
    source="op-plugin docs: torch_npu.npu_moe_gating_top_k_softmax",
    limits="x of 2 or 3 dimensions, k at most 1024 and the number of experts.",
    missing="finished.",
)
def npu_moe_gating_top_k_softmax(
    x: torch.Tensor, finished: torch.Tensor | None = None, k: int = 1
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The k largest of softmax(x), not renormalised.

    Returns weights (..., k) in x's dtype, expert indices int32, and for each choice its row in the
    order "all first choices, all second choices, ...", int32.
    """
    if finished is not None:
        raise NotImplementedError(
            "emulated NPU has no torch_npu.npu_moe_gating_top_k_softmax with finished"
        )
    rows = x.float().softmax(-1).reshape(-1, x.shape[-1])
    order = rows.sort(dim=-1, descending=True, stable=True)
    shape = (*x.shape[:-1], k)
    row_index = torch.arange(rows.shape[0] * k, dtype=torch.int32).view(k, -1).t().contiguous()
    weights, experts = order.values[:, :k], order.indices[:, :k]
    return (
        weights.to(x.dtype).reshape(shape),
        experts.to(torch.int32).reshape(shape),
        row_index.reshape(shape),
    )


@npu_moe_gating_top_k_softmax.check
def _check_gating_top_k_softmax(x: torch.Tensor, k: int) -> None:
    require_rank("x", x, (2, 3))
    require_dtype("x", x, FLOATS)
    require_range("k", k, 1, min(1024, x.shape[-1]))
