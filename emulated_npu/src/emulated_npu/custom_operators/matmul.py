# SPDX-License-Identifier: Apache-2.0
"""Batched matrix products, and one whose partial results all ranks add up."""

from __future__ import annotations

import importlib

import torch

from emulated_npu.operators.norm import normalise
from emulated_npu.operators.registry import operator
from emulated_npu.operators.requirements import (
    HALF_FLOATS,
    require_dtype,
    require_rank,
    require_same_dtype,
    require_shape,
)


@operator(
    "batch_matmul_transpose",
    namespace="_C_ascend",
    source="vllm-ascend tests: test_batch_matmul_transpose",
    limits="float16 or bfloat16, one dtype for all.",
    missing="format_mode, quant_mode.",
    writes=("tensor_c",),
)
def batch_matmul_transpose(
    tensor_a: torch.Tensor,
    tensor_b: torch.Tensor,
    tensor_c: torch.Tensor,
    format_mode: str | None = None,
    quant_mode: str | None = None,
) -> None:
    """tensor_c[:, i] = tensor_a[:, i] @ tensor_b[i].

    tensor_a (b, m, k), tensor_b (m, k, n), tensor_c (b, m, n).
    """
    if format_mode is not None or quant_mode is not None:
        raise NotImplementedError(
            f"emulated NPU has no torch.ops._C_ascend.batch_matmul_transpose with format_mode "
            f"{format_mode!r} and quant_mode {quant_mode!r}; it has None"
        )
    product = torch.bmm(tensor_a.transpose(0, 1), tensor_b).transpose(0, 1)
    tensor_c.copy_(product.reshape(tensor_c.shape))


@batch_matmul_transpose.check
def _check_batch_matmul_transpose(
    tensor_a: torch.Tensor, tensor_b: torch.Tensor, tensor_c: torch.Tensor
) -> None:
    require_dtype("tensor_a", tensor_a, HALF_FLOATS)
    require_same_dtype(tensor_a=tensor_a, tensor_b=tensor_b, tensor_c=tensor_c)
    require_rank("tensor_a", tensor_a, 3)
    b, m, k = tensor_a.shape
    require_shape("tensor_b", tensor_b, (m, k, None))
    require_shape("tensor_c", tensor_c, (b, m, tensor_b.shape[-1]))


@operator(
    "matmul_allreduce_add_rmsnorm",
    namespace="_C_ascend",
    source="vllm-ascend tests: test_matmul_allreduce_add_rmsnorm; its op_host for dtypes",
    limits="float16 or bfloat16, one dtype for all. The sum is whole on every rank, also with "
    "is_gather_add_out False, where a device may leave each rank its own rows.",
)
def matmul_allreduce_add_rmsnorm(
    x1: torch.Tensor,
    x2: torch.Tensor,
    residual: torch.Tensor,
    gamma: torch.Tensor,
    groupTp: str,  # noqa: N803 (names of the installed schema)
    tpRankSize: int,  # noqa: N803
    tpRankId: int,  # noqa: N803
    epsilon: float,
    isTransB: bool,  # noqa: N803
    isGatherAddOut: bool,  # noqa: N803
) -> tuple[torch.Tensor, torch.Tensor]:
    """rms_norm(sum over ranks of x1 @ x2 + residual) * gamma.

    x1 (..., k), x2 (k, n), or (n, k) with isTransB; residual (..., n). groupTp names the ranks'
    communicator. The product is rounded before it is added up, and the sum before it is normalised,
    as in the golden test.

    Returns y and the sum, both as residual.
    """
    product = x1 @ (x2.transpose(-1, -2) if isTransB else x2)
    importlib.import_module("emulated_npu.collectives").add_up(product, groupTp)
    total = product + residual
    quotient, _ = normalise(total, 1, epsilon)
    return (quotient * gamma.float()).to(total.dtype), total


@matmul_allreduce_add_rmsnorm.check
def _check_matmul_allreduce(
    x1: torch.Tensor,
    x2: torch.Tensor,
    residual: torch.Tensor,
    gamma: torch.Tensor,
    isTransB: bool,  # noqa: N803
) -> None:
    require_dtype("x1", x1, HALF_FLOATS)
    require_same_dtype(x1=x1, x2=x2, residual=residual, gamma=gamma)
    columns = residual.shape[-1]
    inner = x1.shape[-1]
    require_shape("x2", x2, (columns, inner) if isTransB else (inner, columns))
    require_shape("residual", residual, (*x1.shape[:-1], columns))
    require_shape("gamma", gamma, (columns,))
