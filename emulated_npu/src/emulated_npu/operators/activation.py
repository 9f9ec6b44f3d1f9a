# SPDX-License-Identifier: Apache-2.0
"""Activation functions."""

from __future__ import annotations

import torch

from emulated_npu.operators.registry import operator
from emulated_npu.operators.requirements import (
    FLOATS,
    require,
    require_contiguous,
    require_dtype,
    require_range,
)


@operator(
    "npu_swiglu",
    source="op-plugin docs: torch_npu.npu_swiglu",
    limits="float16, bfloat16 or float32; 1 to 8 dimensions, contiguous, not empty, even size "
    "along dim.",
)
def npu_swiglu(input: torch.Tensor, dim: int = -1) -> torch.Tensor:
    """silu(first half) * second half along `dim`, computed in float32, rounded once."""
    gate, up = input.float().chunk(2, dim)
    return (torch.nn.functional.silu(gate) * up).to(input.dtype)


@npu_swiglu.check
def _check_swiglu(input: torch.Tensor, dim: int) -> None:
    require_dtype("input", input, FLOATS)
    require(1 <= input.dim() <= 8, f"input has {input.dim()} dimensions; it must have 1 to 8")
    require_range("dim", dim, -input.dim(), input.dim() - 1)
    require(
        input.shape[dim] % 2 == 0,
        f"input has size {input.shape[dim]} along dim {dim}; it must be even",
    )
    require(input.numel() > 0, f"input is empty (shape {tuple(input.shape)})")
    require_contiguous("input", input)


@operator(
    "npu_fast_gelu",
    source="op-plugin docs: torch_npu.npu_fast_gelu (the formula of Atlas A2)",
    limits="float16, bfloat16 or float32, at most 8 dimensions.",
)
def npu_fast_gelu(input: torch.Tensor) -> torch.Tensor:
    """x / (1 + exp(-1.702 x)), computed in float32, rounded once."""
    wide = input.float()
    return (wide * torch.sigmoid(1.702 * wide)).to(input.dtype)


@npu_fast_gelu.check
def _check_fast_gelu(input: torch.Tensor) -> None:
    require_dtype("input", input, FLOATS)
    require(input.dim() <= 8, f"input has {input.dim()} dimensions; it must have at most 8")


@operator(
    "npu_clipped_swiglu",
    source="op-plugin docs: torch_npu.npu_clipped_swiglu",
    limits="float16, bfloat16 or float32; at least 2 dimensions, contiguous, even size along dim.",
    missing="group_index",
)
def npu_clipped_swiglu(
    x: torch.Tensor,
    *,
    group_index: torch.Tensor | None = None,
    dim: int = -1,
    alpha: float = 1.702,
    limit: float = 7.0,
    bias: float = 1.0,
    interleaved: bool = True,
) -> torch.Tensor:
    """gate * sigmoid(alpha * gate) * (up + bias), in float32, rounded once; half of x along `dim`.

    gate is at most `limit`, up from -limit to limit. They are the even and odd places along `dim`,
    or its halves if not `interleaved`.
    """
    if group_index is not None:
        raise NotImplementedError(
            "emulated NPU: npu_clipped_swiglu with group_index is not emulated; call it without"
        )
    wide = x.float().movedim(dim, -1)
    gate, up = (wide[..., ::2], wide[..., 1::2]) if interleaved else wide.chunk(2, -1)
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    result = gate * torch.sigmoid(alpha * gate) * (up + bias)
    return result.movedim(-1, dim).to(x.dtype).contiguous()


@npu_clipped_swiglu.check
def _check_clipped_swiglu(x: torch.Tensor, dim: int) -> None:
    require_dtype("x", x, FLOATS)
    require(x.dim() > 1, f"x has {x.dim()} dimensions; it must have at least 2")
    require_range("dim", dim, -x.dim(), x.dim() - 1)
    require(x.shape[dim] % 2 == 0, f"x has size {x.shape[dim]} along dim {dim}; it must be even")
    require_contiguous("x", x)
