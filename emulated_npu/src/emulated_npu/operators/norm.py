# SPDX-License-Identifier: Apache-2.0
"""RMS normalisation, alone and fused with the addition of a residual.

Statistics are computed in float32 whatever the dtype of the input, and each result is rounded once,
as the golden tests of op-plugin do.
"""

from __future__ import annotations

import torch

from emulated_npu.operators.registry import operator
from emulated_npu.operators.requirements import (
    FLOATS,
    require,
    require_dtype,
    require_same_dtype,
    require_shape,
)


def normalise(
    x: torch.Tensor, normalised_dims: int, epsilon: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """x / sqrt(mean(x^2) + epsilon) over the last `normalised_dims` dimensions.

    Returns the quotient and the reciprocal of the root, both float32; the latter keeps the
    normalised dimensions with size 1.
    """
    wide = x.float()
    dims = tuple(range(-normalised_dims, 0))
    reciprocal_root = torch.rsqrt(wide.pow(2).mean(dims, keepdim=True) + epsilon)
    return wide * reciprocal_root, reciprocal_root


def require_weight_shape(name: str, weight: torch.Tensor, x_name: str, x: torch.Tensor) -> None:
    """Refuse a weight whose shape is not that of the last dimensions of `x`."""
    require(
        0 < weight.dim() <= x.dim() and weight.shape == x.shape[x.dim() - weight.dim() :],
        f"{name} has shape {tuple(weight.shape)}; it must be the last dimensions of {x_name}, "
        f"whose shape is {tuple(x.shape)}",
    )


def require_not_empty(**tensors: torch.Tensor) -> None:
    """Refuse empty tensors, given by name."""
    for name, tensor in tensors.items():
        require(
            tensor.numel() > 0,
            f"{name} is empty (shape {tuple(tensor.shape)}); the operator takes no empty tensors",
        )


@operator(
    "npu_rms_norm",
    source="op-plugin docs: torch_npu.npu_rms_norm",
    limits="x float16, bfloat16 or float32 of 2 to 8 dimensions; gamma float32 or as x.",
)
def npu_rms_norm(
    input: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor]:
    """x / rms(x) * gamma over gamma's dimensions.

    Returns y (shape and dtype of `input`) and 1 / rms(x) (float32).
    """
    quotient, reciprocal_root = normalise(input, gamma.dim(), epsilon)
    return (quotient * gamma.float()).to(input.dtype), reciprocal_root


@npu_rms_norm.check
def _check_rms_norm(input: torch.Tensor, gamma: torch.Tensor) -> None:
    require_dtype("input", input, FLOATS)
    require_dtype("gamma", gamma, (torch.float32, input.dtype))
    require(2 <= input.dim() <= 8, f"input has {input.dim()} dimensions; it must have 2 to 8")
    require_weight_shape("gamma", gamma, "input", input)


@operator(
    "npu_add_rms_norm",
    source="op-plugin docs: torch_npu.npu_add_rms_norm",
    limits="float16, bfloat16 or float32, one dtype for all; 1 to 8 dimensions; no empty tensors.",
)
def npu_add_rms_norm(
    x1: torch.Tensor, x2: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """RMS norm of x1 + x2. The sum is rounded to its dtype before it is normalised.

    Returns y (as x1), 1 / rms (float32) and the sum (as x1).
    """
    total = x1 + x2
    quotient, reciprocal_root = normalise(total, gamma.dim(), epsilon)
    return (quotient * gamma.float()).to(x1.dtype), reciprocal_root, total


@npu_add_rms_norm.check
def check_add_rms_norm(x1: torch.Tensor, x2: torch.Tensor, gamma: torch.Tensor) -> None:
    require_dtype("x1", x1, FLOATS)
    require_same_dtype(x1=x1, x2=x2, gamma=gamma)
    require(1 <= x1.dim() <= 8, f"x1 has {x1.dim()} dimensions; it must have 1 to 8")
    require_shape("x2", x2, x1.shape)
    require_weight_shape("gamma", gamma, "x1", x1)
    require_not_empty(x1=x1, gamma=gamma)


def gemma_rms_norm(
    x: torch.Tensor, gamma: torch.Tensor, epsilon: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """x / rms(x) * (1 + gamma), as Gemma models store their weights; y as x, 1 / rms float32."""
    quotient, reciprocal_root = normalise(x, gamma.dim(), epsilon)
    return (quotient * (1.0 + gamma.float())).to(x.dtype), reciprocal_root


def check_gemma_rms_norm(x: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-6) -> None:
    """Both of one float dtype, gamma of the shape of x's last dimensions."""
    require_dtype("x", x, FLOATS)
    require_same_dtype(x=x, gamma=gamma)
    require_weight_shape("gamma", gamma, "x", x)


@operator(
    "npu_gemma_rms_norm",
    source="op-plugin tests: test_npu_gemma_rms_norm",
    limits="float16, bfloat16 or float32, one dtype for both.",
)
def npu_gemma_rms_norm(
    input: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor]:
    """See gemma_rms_norm."""
    return gemma_rms_norm(input, gamma, epsilon)


@npu_gemma_rms_norm.check
def _check_gemma_rms_norm(input: torch.Tensor, gamma: torch.Tensor, epsilon: float) -> None:
    check_gemma_rms_norm(input, gamma, epsilon)
