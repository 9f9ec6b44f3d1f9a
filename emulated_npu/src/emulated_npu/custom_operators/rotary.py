# SPDX-License-Identifier: Apache-2.0
"""Rotary positions of a part of the features, in place."""

from __future__ import annotations

import torch

from emulated_npu.custom_operators.compressor import rotate_pairs
from emulated_npu.operators.registry import operator
from emulated_npu.operators.requirements import FLOATS, require, require_dtype, require_rank

MODES = ("interleave",)


@operator(
    "inplace_partial_rotary_mul",
    namespace="_C_ascend",
    source="vllm-ascend: definition of InplacePartialRotaryMul, which is op-plugin's "
    "npu_rotary_mul on a slice",
    limits="""x of four dimensions, float16, bfloat16 or float32; r1 and r2 of x's dtype or float32,
    broadcast to the slice; rotary_mode interleave; partial_slice a pair [first, end).""",
    writes=("x",),
)
def inplace_partial_rotary_mul(
    x: torch.Tensor,
    r1: torch.Tensor,
    r2: torch.Tensor,
    rotary_mode: str,
    partial_slice: list[int],
    negate_sin: bool = False,
) -> None:
    """x[..., first:end] = x * r1 + (-x1, x0, -x3, x2, ...) * r2 of that slice.

    negate_sin (of vllm-ascend 0.30.0rc2) takes -r2 for r2: the rotation back.
    """
    part = x[..., partial_slice[0] : partial_slice[1]]
    sine = -r2.float() if negate_sin else r2.float()
    part.copy_(rotate_pairs(part.float(), r1.float(), sine).to(x.dtype))


@inplace_partial_rotary_mul.check
def _check_rotary(
    x: torch.Tensor, r1: torch.Tensor, r2: torch.Tensor, rotary_mode: str, partial_slice: list[int]
) -> None:
    require_rank("x", x, 4)
    require_dtype("x", x, FLOATS)
    for name, table in (("r1", r1), ("r2", r2)):
        require_rank(name, table, 4)
        require(
            table.dtype in (x.dtype, torch.float32),
            f"{name} is {table.dtype}; it must be {x.dtype} or torch.float32",
        )
    require(rotary_mode in MODES, f"rotary_mode is {rotary_mode!r}; it must be 'interleave'")
    first, end = partial_slice
    require(
        0 <= first < end <= x.shape[-1] and (end - first) % 2 == 0,
        f"partial_slice is {list(partial_slice)}; it must be an even part of {x.shape[-1]}",
    )
