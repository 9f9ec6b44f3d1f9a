# SPDX-License-Identifier: Apache-2.0
"""Manifold-constrained hyper-connections of DeepSeek-V4: several residual streams, mixed per token.

Source of the formulas: vLLM's torch form (model_executor/kernels/mhc/torch.py), whose factor of
``post`` is 2 in DeepSeek-V4; vllm-ascend's kernels (hc_pre, hc_pre_sinkhorn, hc_post) compute the
same. Neither is documented elsewhere.
"""

from __future__ import annotations

import torch

from emulated_npu.operators.registry import operator
from emulated_npu.operators.requirements import (
    FLOATS,
    require,
    require_dtype,
    require_rank,
    require_same_dtype,
    require_shape,
)

SOURCE = "vLLM's torch form of hyper-connections; vllm-ascend: kernels hc_pre and hc_post"
POST_FACTOR = 2.0


@operator(
    "npu_hc_pre_v2",
    namespace="_C_ascend",
    source=f"{SOURCE}; vllm-ascend tests: test_npu_hc_pre",
    limits="""x float16, bfloat16 or float32, (..., hc_mult, hidden size); hc_fn, hc_scale and
    hc_base float32. hc_mult 4 is what the tests take.""",
)
def npu_hc_pre_v2(
    x: torch.Tensor,
    hc_fn: torch.Tensor,
    hc_scale: torch.Tensor,
    hc_base: torch.Tensor,
    hc_mult: int,
    hc_sinkhorn_iters: int,
    norm_eps: float,
    hc_eps: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The layer's input from the streams x (..., n, hidden), and how its output is to be mixed.

    hc_fn (2n + n * n, n * hidden), hc_scale (3,), hc_base (2n + n * n,). Returns the input
    (..., hidden) as x, post (..., n) and comb (..., n, n), float32.
    """
    streams = x.float()
    flat = streams.flatten(-2)
    root = torch.rsqrt(flat.square().mean(-1, keepdim=True) + norm_eps)
    mixes = (flat @ hc_fn.T) * root
    pre, post, comb = mixes.split([hc_mult, hc_mult, hc_mult * hc_mult], -1)
    base = hc_base.split([hc_mult, hc_mult, hc_mult * hc_mult])
    pre = torch.sigmoid(pre * hc_scale[0] + base[0]) + hc_eps
    post = torch.sigmoid(post * hc_scale[1] + base[1]) * POST_FACTOR
    comb = (comb * hc_scale[2] + base[2]).unflatten(-1, (hc_mult, hc_mult))
    comb = _doubly_stochastic(comb, hc_sinkhorn_iters, hc_eps)
    return (pre.unsqueeze(-1) * streams).sum(-2).to(x.dtype), post, comb


def _doubly_stochastic(logits: torch.Tensor, iterations: int, epsilon: float) -> torch.Tensor:
    """Rows and columns of exp(logits) divided by their sums in turn (Sinkhorn)."""
    matrix = torch.softmax(logits, -1) + epsilon
    matrix = matrix / (matrix.sum(-2, keepdim=True) + epsilon)
    for _ in range(iterations - 1):
        matrix = matrix / (matrix.sum(-1, keepdim=True) + epsilon)
        matrix = matrix / (matrix.sum(-2, keepdim=True) + epsilon)
    return matrix


@npu_hc_pre_v2.check
def _check_hc_pre(
    x: torch.Tensor,
    hc_fn: torch.Tensor,
    hc_scale: torch.Tensor,
    hc_base: torch.Tensor,
    hc_mult: int,
    hc_sinkhorn_iters: int,
) -> None:
    require_dtype("x", x, FLOATS)
    require_rank("x", x, (3, 4))
    mixes = (2 + hc_mult) * hc_mult
    require_shape("x", x, (*x.shape[:-2], hc_mult, None))
    for name, tensor, shape in (
        ("hc_fn", hc_fn, (mixes, hc_mult * x.shape[-1])),
        ("hc_scale", hc_scale, (3,)),
        ("hc_base", hc_base, (mixes,)),
    ):
        require_dtype(name, tensor, (torch.float32,))
        require_shape(name, tensor, shape)
    require(hc_sinkhorn_iters >= 1, f"hc_sinkhorn_iters is {hc_sinkhorn_iters}; it must be 1 up")


@operator(
    "npu_hc_post",
    namespace="_C_ascend",
    source=SOURCE,
    limits="float16, bfloat16 or float32; x and residual of one dtype, post and comb of one.",
)
def npu_hc_post(
    x: torch.Tensor, residual: torch.Tensor, post: torch.Tensor, comb: torch.Tensor
) -> torch.Tensor:
    """The streams after a layer: out[j] = post[j] * x + sum over i of comb[i, j] * residual[i].

    x (B, S, hidden), residual (B, S, n, hidden), post (B, S, n), comb (B, S, n, n). As residual.
    """
    mixed = comb.float().transpose(-1, -2) @ residual.float()
    return (mixed + post.float().unsqueeze(-1) * x.float().unsqueeze(-2)).to(residual.dtype)


@npu_hc_post.check
def _check_hc_post(
    x: torch.Tensor, residual: torch.Tensor, post: torch.Tensor, comb: torch.Tensor
) -> None:
    require_dtype("x", x, FLOATS)
    require_same_dtype(x=x, residual=residual)
    require_dtype("post", post, FLOATS)
    require_same_dtype(post=post, comb=comb)
    require_rank("residual", residual, 4)
    batch, length, streams, width = residual.shape
    require_shape("x", x, (batch, length, width))
    require_shape("post", post, (batch, length, streams))
    require_shape("comb", comb, (batch, length, streams, streams))
