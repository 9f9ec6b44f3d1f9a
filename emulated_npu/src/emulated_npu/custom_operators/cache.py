# SPDX-License-Identifier: Apache-2.0
"""Writes to caches by index."""

from __future__ import annotations

import torch

from emulated_npu.operators.registry import operator
from emulated_npu.operators.requirements import (
    INTEGERS,
    require,
    require_dtype,
    require_same_dtype,
)

UPDATE_DTYPES = (
    torch.float16,
    torch.float32,
    torch.bfloat16,
    torch.bool,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
)

SPLIT_KERNEL_DTYPES = (
    torch.float16,
    torch.float32,
    torch.bfloat16,
    torch.bool,
    torch.int64,
    torch.int8,
    torch.uint8,
)
"""Of the operator that vllm-ascend 0.30 has; 8-bit floats, of later devices, apart."""


@operator(
    "npu_scatter_nd_update_v2",
    namespace="_C_ascend",
    source="vllm-ascend: definition of the ScatterNdUpdateV2 kernel",
    limits="""indices int32 or int64 within var; var may be strided. A row before the first element,
    as (-1, last offset) is, is skipped: the kernel writes from there on, vllm-ascend 0.23.0 pads
    with it. update may lack axes of size 1, as vllm-ascend leaves out that of heads.""",
    writes=("var",),
)
def npu_scatter_nd_update_v2(
    var: torch.Tensor, indices: torch.Tensor, update: torch.Tensor
) -> None:
    """var[indices[i]] = update[i] for each row i.

    The last dimension of indices (..., r) indexes the first r dimensions of var; update has the
    shape (..., *var.shape[r:]).
    """
    indexed_dims = indices.shape[-1]
    rows = indices.reshape(-1, indexed_dims).long()
    values = update.reshape(rows.shape[0], *var.shape[indexed_dims:])
    used = _places(rows, var) >= 0
    var[tuple(rows[used].unbind(-1))] = values[used].to(var.dtype)


def _places(rows: torch.Tensor, var: torch.Tensor) -> torch.Tensor:
    """The place of each row of indices (rows, r) among the slices of a contiguous ``var``."""
    sizes = torch.tensor([*var.shape[1 : rows.shape[-1]], 1])
    return (rows.long() * sizes.flip(0).cumprod(0).flip(0)).sum(-1)


@npu_scatter_nd_update_v2.check
def _check_scatter_nd_update(
    var: torch.Tensor, indices: torch.Tensor, update: torch.Tensor
) -> None:
    require_dtype("var", var, UPDATE_DTYPES)
    _check_update(var, indices, update)


npu_scatter_nd_update_sk = operator(
    "npu_scatter_nd_update_sk",
    namespace="_C_ascend",
    source="vllm-ascend 0.30: definition of the ScatterNdUpdateSk kernel",
    limits="as npu_scatter_nd_update_v2, in whose place it is, without int32 and int16",
    writes=("var",),
)(npu_scatter_nd_update_v2.kernel)


@npu_scatter_nd_update_sk.check
def _check_scatter_nd_update_sk(
    var: torch.Tensor, indices: torch.Tensor, update: torch.Tensor
) -> None:
    require_dtype("var", var, SPLIT_KERNEL_DTYPES)
    _check_update(var, indices, update)


def _check_update(var: torch.Tensor, indices: torch.Tensor, update: torch.Tensor) -> None:
    require_same_dtype(var=var, update=update)
    require_dtype("indices", indices, INTEGERS)
    indexed_dims = indices.shape[-1]
    require(
        1 <= indexed_dims <= var.dim(),
        f"indices' last dimension is {indexed_dims}; it must be from 1 to {var.dim()}, the "
        f"dimensions of var",
    )
    wanted = (*indices.shape[:-1], *var.shape[indexed_dims:])
    require(
        [size for size in update.shape if size != 1] == [size for size in wanted if size != 1],
        f"update has shape {tuple(update.shape)}; it must be {wanted}, axes of size 1 apart",
    )
    rows = indices.reshape(-1, indexed_dims)
    inside = ((rows >= 0) & (rows < torch.tensor(var.shape[:indexed_dims]))).all(-1)
    inside |= _places(rows, var) < 0
    require(
        bool(inside.all()),
        f"indices reach outside var, whose shape is {tuple(var.shape)}: "
        f"{rows[~inside][:3].tolist()}",
    )
