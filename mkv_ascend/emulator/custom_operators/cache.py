# SPDX-License-Identifier: Apache-2.0
"""Writes to caches by index."""

from __future__ import annotations

import torch

from mkv_ascend.emulator.operators.registry import operator
from mkv_ascend.emulator.operators.requirements import (
    INTEGERS,
    require,
    require_dtype,
    require_same_dtype,
    require_shape,
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


@operator(
    "npu_scatter_nd_update_v2",
    namespace="_C_ascend",
    source="vllm-ascend: definition of the ScatterNdUpdateV2 kernel",
    limits="indices int32 or int64 within var (a negative index is refused); var may be strided.",
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
    var[tuple(rows.unbind(-1))] = update.reshape(rows.shape[0], *var.shape[indexed_dims:])


@npu_scatter_nd_update_v2.check
def _check_scatter_nd_update(
    var: torch.Tensor, indices: torch.Tensor, update: torch.Tensor
) -> None:
    require_dtype("var", var, UPDATE_DTYPES)
    require_same_dtype(var=var, update=update)
    require_dtype("indices", indices, INTEGERS)
    indexed_dims = indices.shape[-1]
    require(
        1 <= indexed_dims <= var.dim(),
        f"indices' last dimension is {indexed_dims}; it must be from 1 to {var.dim()}, the "
        f"dimensions of var",
    )
    require_shape("update", update, (*indices.shape[:-1], *var.shape[indexed_dims:]))
    rows = indices.reshape(-1, indexed_dims)
    inside = (rows >= 0) & (rows < torch.tensor(var.shape[:indexed_dims]))
    require(
        bool(inside.all()),
        f"indices reach outside var, whose shape is {tuple(var.shape)}: "
        f"{rows[~inside.all(-1)][:3].tolist()}",
    )
