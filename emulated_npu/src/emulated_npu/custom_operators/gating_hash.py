# SPDX-License-Identifier: Apache-2.0
"""DeepSeek-V4's choice of experts: by score, or in its first layers by the token's id."""

from __future__ import annotations

import torch
from torch.nn.functional import softplus

from emulated_npu.operators.registry import operator
from emulated_npu.operators.requirements import (
    FLOATS,
    INTEGERS,
    require,
    require_dtype,
    require_range,
    require_rank,
    require_same_dtype,
    require_shape,
)

ROOT_OF_SOFTPLUS = 2  # norm_type
MOST_EXPERTS = 2048


@operator(
    "moe_gating_top_k_hash",
    namespace="_C_ascend",
    source="vllm-ascend: kernel MoeGatingTopKHash (no documentation); vLLM's torch form of "
    "sqrtsoftplus scores",
    limits="""x float16, bfloat16 or float32, bias the same; input_ids and tid2eid int32 or int64,
    both or none; norm_type 2, group_count 1, renorm 0, at most 2048 experts. The scores of the
    chosen are divided by their sum plus eps and multiplied by routed_scaling_factor, as the
    kernel does.""",
    missing="norm_type 0 and 1, groups, out_flag, bias_vl (tokens of images)",
)
def moe_gating_top_k_hash(
    x: torch.Tensor,
    k: int,
    bias: torch.Tensor | None = None,
    input_ids: torch.Tensor | None = None,
    tid2eid: torch.Tensor | None = None,
    k_group: int = 1,
    group_count: int = 1,
    routed_scaling_factor: float = 1.0,
    eps: float = 1e-20,
    group_select_mode: int = 0,
    renorm: int = 0,
    norm_type: int = 0,
    out_flag: bool = False,
    bias_vl: torch.Tensor | None = None,
    image_sentinel_lo: int = 129257,
    image_sentinel_count: int = 5,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Weights (T, k) as x and experts (T, k) int32 for router logits x (T, experts).

    The k experts of highest score plus bias, best first; with tid2eid (vocabulary, k) those of the
    token's row. The bias chooses and does not weigh. The last three parameters are of vllm-ascend
    0.30.0rc2 and mean nothing without bias_vl.
    """
    if norm_type != ROOT_OF_SOFTPLUS or group_count != 1 or out_flag or bias_vl is not None:
        raise NotImplementedError(
            "emulated NPU: moe_gating_top_k_hash is emulated for norm_type 2, group_count 1 and "
            "without out_flag and bias_vl"
        )
    scores = softplus(x.float()).sqrt()
    if tid2eid is not None and input_ids is not None:
        experts = tid2eid[input_ids.long()].long()
    else:
        ranked = scores if bias is None else scores + bias.float()
        experts = ranked.topk(k, dim=-1).indices
    weights = scores.gather(-1, experts)
    weights = weights / (weights.sum(-1, keepdim=True) + eps) * routed_scaling_factor
    return weights.to(x.dtype), experts.to(torch.int32), torch.empty(0)


@moe_gating_top_k_hash.check
def _check_gating(
    x: torch.Tensor,
    k: int,
    bias: torch.Tensor | None,
    input_ids: torch.Tensor | None,
    tid2eid: torch.Tensor | None,
    renorm: int,
) -> None:
    require_dtype("x", x, FLOATS)
    require_rank("x", x, 2)
    require_range("the number of experts", x.shape[1], 1, MOST_EXPERTS)
    require_range("k", k, 1, x.shape[1])
    require(renorm == 0, f"renorm is {renorm}; it must be 0")
    require(
        (input_ids is None) == (tid2eid is None), "input_ids and tid2eid are given together or not"
    )
    if bias is not None:
        require_same_dtype(x=x, bias=bias)
        require_shape("bias", bias, (x.shape[1],))
    if input_ids is not None and tid2eid is not None:
        require_dtype("input_ids", input_ids, INTEGERS)
        require_dtype("tid2eid", tid2eid, INTEGERS)
        require_shape("input_ids", input_ids, (x.shape[0],))
        require_shape("tid2eid", tid2eid, (None, k))
