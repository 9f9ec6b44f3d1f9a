# SPDX-License-Identifier: Apache-2.0
"""Checks of the mask of npu_fused_infer_attention_score and npu_fusion_attention.

Source: op-plugin docs, atten_mask and sparse_mode.
"""

from __future__ import annotations

import torch

from emulated_npu.operators.attention_call import FusedInferCall
from emulated_npu.operators.requirements import (
    dtype_name,
    require,
    require_dtype,
    require_rank,
)

TRIANGLE_SIZE = 2048
TRIANGULAR_MODES = (2, 3, 4)
# Places of the triangular mask that are looked at: reading all 4 million would cost more than
# the attention of a small model. True where a score is dropped.
_PROBES = ((0, 0, 0), (0, 1, 1), (1, 0, 0), (1, 1, 0), (0, 2047, 1), (2047, 0, 0), (2047, 2047, 0))


def check_mask(call: FusedInferCall) -> None:
    """The mask that the sparse mode needs, in shape, dtype and content."""
    if call.sparse_mode in TRIANGULAR_MODES:
        check_triangular_mask(call.mask, call.sparse_mode, (torch.bool, torch.int8, torch.uint8))
        if call.sparse_mode == 4:
            require(
                call.pre_tokens >= 0,
                f"pre_tokens is {call.pre_tokens}; the emulated band needs 0 or more",
            )
        return
    if call.mask is None:
        require(call.sparse_mode != 1, "sparse_mode 1 needs an atten_mask")
        return
    require(
        not call.layout.packed,
        f"atten_mask with sparse_mode {call.sparse_mode} in layout {call.input_layout}; use "
        f"sparse_mode 3 or 4 with the triangular mask, or no mask",
    )
    require_dtype("atten_mask", call.mask, (torch.bool, torch.int8, torch.uint8))
    _check_full_mask(call, call.mask)


def check_triangular_mask(
    mask: torch.Tensor | None, mode: int, dtypes: tuple[torch.dtype, ...]
) -> None:
    """The fixed mask of the causal and band modes: 2048 x 2048, ones above the diagonal."""
    if mask is None:
        require(
            False,
            f"sparse_mode {mode} needs atten_mask, ones above the diagonal, of shape "
            f"({TRIANGLE_SIZE}, {TRIANGLE_SIZE})",
        )
        return
    require_dtype("atten_mask", mask, dtypes)
    square = (TRIANGLE_SIZE, TRIANGLE_SIZE)
    require(
        tuple(mask.shape) in (square, (1, *square), (1, 1, *square)),
        f"atten_mask has shape {tuple(mask.shape)}; sparse_mode {mode} takes {square}",
    )
    flat = mask.view(-1)
    places = torch.tensor([row * TRIANGLE_SIZE + column for row, column, _ in _PROBES])
    found = [int(value) for value in flat[places].tolist()]
    require(
        found == [dropped for _, _, dropped in _PROBES],
        f"atten_mask ({dtype_name(mask.dtype)}) is not the triangular mask of sparse_mode {mode}: "
        f"it must be 1 above the diagonal (dropped) and 0 elsewhere",
    )


def _check_full_mask(call: FusedInferCall, mask: torch.Tensor) -> None:
    batch_size = call.batch_size
    width = call.layout.sequence_length(call.query)
    if call.block_table is not None:
        kv_width = call.block_table.shape[1] * call.block_size
    else:
        kv_width = call.layout.sequence_length(call.key)
    require_rank("atten_mask", mask, (2, 3, 4))
    rows, columns = mask.shape[-2:]
    leading = tuple(mask.shape[:-2])
    if mask.dim() == 2:
        require(
            call.query_rope is None,
            "atten_mask of two dimensions with query_rope; use (1, Q_S, KV_S)",
        )
        enough_rows = rows == batch_size if width == 1 else rows >= width
    else:
        enough_rows = rows >= width and leading[0] in (1, batch_size) and leading[1:] in ((), (1,))
    require(
        enough_rows and columns >= kv_width,
        f"atten_mask has shape {tuple(mask.shape)}; for {batch_size} requests of {width} queries "
        f"and {kv_width} keys it must be (B, Q_S, KV_S), (B, 1, Q_S, KV_S), these with 1 for B, or "
        f"without rope (Q_S, KV_S), with one query (B, KV_S)",
    )
