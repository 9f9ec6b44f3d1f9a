# SPDX-License-Identifier: Apache-2.0
"""RMS normalisation with a bias, and as Gemma models have it."""

from __future__ import annotations

import torch

from emulated_npu.operators.norm import (
    check_add_rms_norm,
    check_gemma_rms_norm,
    gemma_rms_norm,
    normalise,
)
from emulated_npu.operators.registry import operator
from emulated_npu.operators.requirements import (
    HALF_FLOATS,
    require_dtype,
    require_same_dtype,
    require_shape,
)


@operator(
    "npu_add_rms_norm_bias",
    namespace="_C_ascend",
    source="vllm-ascend tests: test_add_rms_norm_bias",
    limits="float16, bfloat16 or float32, one dtype for all; no empty tensors.",
)
def npu_add_rms_norm_bias(
    x1: torch.Tensor,
    x2: torch.Tensor,
    gamma: torch.Tensor,
    beta: torch.Tensor | None = None,
    epsilon: float = 1e-6,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """rms_norm(x1 + x2) * gamma + beta.

    The sum, and the normalised value before gamma, are rounded to x1's dtype, as in the golden
    test. Returns y (as x1), 1 / rms (float32) and the sum (as x1).
    """
    total = x1 + x2
    quotient, reciprocal_root = normalise(total, gamma.dim(), epsilon)
    y = quotient.to(x1.dtype).float() * gamma.float()
    if beta is not None:
        y = y + beta.float()
    return y.to(x1.dtype), reciprocal_root, total


@npu_add_rms_norm_bias.check
def _check_add_rms_norm_bias(
    x1: torch.Tensor, x2: torch.Tensor, gamma: torch.Tensor, beta: torch.Tensor | None
) -> None:
    check_add_rms_norm(x1, x2, gamma)
    if beta is not None:
        require_same_dtype(x1=x1, beta=beta)
        require_shape("beta", beta, gamma.shape)


@operator(
    "npu_gemma_rms_norm",
    namespace="_C_ascend",
    source="op-plugin tests: test_npu_gemma_rms_norm",
    limits="float16, bfloat16 or float32, one dtype for both.",
)
def npu_gemma_rms_norm(
    x: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor]:
    """x / rms(x) * (1 + gamma). Returns y (as x) and 1 / rms (float32)."""
    return gemma_rms_norm(x, gamma, epsilon)


npu_gemma_rms_norm.check(check_gemma_rms_norm)


@operator(
    "npu_rms_norm_cast",
    namespace="_C_ascend",
    source="vllm-ascend 0.30: definition of the RmsNormCast kernel, and what DeepSeek-V4 computes "
    "where there is none",
    limits="x and gamma of one 16-bit float; gamma as the last axis of x.",
)
def npu_rms_norm_cast(
    x: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor]:
    """rms_norm(x) * gamma, in x's dtype and, rounded to it, as float32.

    In float16 the quotient is rounded before gamma as well, as in the kernel.
    """
    quotient, _ = normalise(x, gamma.dim(), epsilon)
    if x.dtype is torch.float16:
        quotient = quotient.to(x.dtype).float()
    y = (quotient * gamma.float()).to(x.dtype)
    return y, y.float()


@npu_rms_norm_cast.check
def _check_rms_norm_cast(x: torch.Tensor, gamma: torch.Tensor) -> None:
    require_dtype("x", x, HALF_FLOATS)
    require_same_dtype(x=x, gamma=gamma)
    require_shape("gamma", gamma, tuple(x.shape[-1:]))
