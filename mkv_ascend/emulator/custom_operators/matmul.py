# SPDX-License-Identifier: Apache-2.0
"""Batched matrix products."""

from __future__ import annotations

import torch

from mkv_ascend.emulator.operators.registry import operator
from mkv_ascend.emulator.operators.requirements import (
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
