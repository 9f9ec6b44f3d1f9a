# SPDX-License-Identifier: Apache-2.0
"""RMS normalisation fused with the addition of a residual before it and a quantisation after it.

vllm-ascend's fusion pass of norms and quantisation puts these into compiled graphs of int8 models.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from emulated_npu.operators.binding import Arguments
from emulated_npu.operators.norm import (
    normalise,
    require_not_empty,
    require_weight_shape,
)
from emulated_npu.operators.quantization import quantise_rows
from emulated_npu.operators.registry import operator
from emulated_npu.operators.requirements import (
    HALF_FLOATS,
    require,
    require_absent,
    require_dtype,
    require_range,
    require_same_dtype,
    require_shape,
)
from emulated_npu.unwritten import undefined

INT8_MIN, INT8_MAX = -128, 127


def normalised_sum(
    x1: torch.Tensor,
    x2: torch.Tensor,
    gamma: torch.Tensor,
    beta: torch.Tensor | None,
    epsilon: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """rms_norm(x1 + x2) * gamma + beta in float32, the sum in x1's dtype, and 1 / rms (float32).

    Only the sum is rounded: a fused operator keeps what it quantises in float32.
    """
    total = x1 + x2
    quotient, reciprocal_root = normalise(total, gamma.dim(), epsilon)
    y = quotient * gamma.float()
    return (y if beta is None else y + beta.float()), total, reciprocal_root


@operator(
    "npu_add_rms_norm_quant",
    source="op-plugin docs: torch_npu.npu_add_rms_norm_quant (table of Atlas A2, A3)",
    limits="x1, x2, gamma, beta float16 with float32 scales and int32 zero points, or all "
    "bfloat16; scales and zero points of gamma's shape; axis -1. y2 is empty without scales2.",
)
def npu_add_rms_norm_quant(
    x1: torch.Tensor,
    x2: torch.Tensor,
    gamma: torch.Tensor,
    scales1: torch.Tensor,
    zero_points1: torch.Tensor | None,
    beta: torch.Tensor | None = None,
    scales2: torch.Tensor | None = None,
    zero_points2: torch.Tensor | None = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-6,
    div_mode: bool = True,
    dst_type: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """round(y / scales + zero_points) of y = rms_norm(x1 + x2) * gamma + beta, as int8.

    div_mode: whether scales divide; else they multiply.

    Returns y1, y2 (int8, of x1's shape) and the sum (as x1).
    """
    require_absent("npu_add_rms_norm_quant", dst_type=dst_type)
    y, total, _ = normalised_sum(x1, x2, gamma, beta, epsilon)
    first = _quantised(y, scales1, zero_points1, div_mode)
    if scales2 is None:
        return first, undefined(first.clone()), total
    return first, _quantised(y, scales2, zero_points2, div_mode), total


def _quantised(
    y: torch.Tensor, scales: torch.Tensor, zero_points: torch.Tensor | None, div_mode: bool
) -> torch.Tensor:
    scaled = y / scales.float() if div_mode else y * scales.float()
    if zero_points is not None:
        scaled = scaled + zero_points.float()
    return scaled.round().clamp(INT8_MIN, INT8_MAX).to(torch.int8)


@npu_add_rms_norm_quant.check
def _check_add_rms_norm_quant(given: Arguments) -> None:
    _check_addends(given.x1, given.x2, given.gamma, given.beta)
    require_range("x1's number of dimensions", given.x1.dim(), 1, 8)
    require(given.axis == -1, f"axis is {given.axis}; it must be -1")
    wide = given.x1.dtype == torch.bfloat16
    for name in ("scales1", "scales2", "zero_points1", "zero_points2"):
        tensor = getattr(given, name)
        if tensor is None:
            continue
        narrow = torch.float32 if name.startswith("scales") else torch.int32
        require_dtype(name, tensor, (torch.bfloat16 if wide else narrow,))
        require_shape(name, tensor, given.gamma.shape)
    require(
        given.scales2 is not None or given.zero_points2 is None,
        "zero_points2 is given without scales2; give both",
    )


def _check_addends(
    x1: torch.Tensor, x2: torch.Tensor, gamma: torch.Tensor, beta: torch.Tensor | None
) -> None:
    require_dtype("x1", x1, HALF_FLOATS)
    require_same_dtype(x1=x1, x2=x2, gamma=gamma, beta=beta)
    require_shape("x2", x2, x1.shape)
    require_weight_shape("gamma", gamma, "x1", x1)
    if beta is not None:
        require_shape("beta", beta, gamma.shape)


@operator(
    "npu_add_rms_norm_dynamic_quant",
    source="op-plugin docs: torch_npu.npu_add_rms_norm_dynamic_quant",
    limits="x1, x2, gamma, beta and smooth scales of one dtype, float16 or bfloat16; x1 of 2 to 8 "
    "dimensions, the others of its last size; no empty tensors. Without output_mask the second "
    "result is there if both smooth scales are.",
    missing="y_dtype other than int8.",
)
def npu_add_rms_norm_dynamic_quant(
    x1: torch.Tensor,
    x2: torch.Tensor,
    gamma: torch.Tensor,
    *,
    smooth_scale1: torch.Tensor | None = None,
    smooth_scale2: torch.Tensor | None = None,
    beta: torch.Tensor | None = None,
    epsilon: float = 1e-6,
    output_mask: Sequence[bool] | None = None,
    y_dtype: torch.dtype | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Quantise each row of y = rms_norm(x1 + x2) * gamma + beta by its largest magnitude.

    smooth_scale1, smooth_scale2: what y is multiplied with before it is quantised, for each result.
    output_mask: which of the two results are computed. What is not is undefined; without the mask's
    second element y2 is empty.

    Returns y1, y2 (int8, of x1's shape), the sum (as x1), scale1, scale2 (float32, of x1's shape
    without its last dimension).
    """
    if y_dtype not in (None, torch.int8):
        raise NotImplementedError(
            f"emulated NPU has no torch_npu.npu_add_rms_norm_dynamic_quant with y_dtype {y_dtype}; "
            f"it has int8"
        )
    y, total, _ = normalised_sum(x1, x2, gamma, beta, epsilon)
    wanted = output_mask or (True, smooth_scale1 is not None and smooth_scale2 is not None)
    rows, scales = [], []
    for smooth, asked in zip((smooth_scale1, smooth_scale2), wanted, strict=True):
        quantised, scale = quantise_rows(y if smooth is None else y * smooth.float())
        rows.append(quantised if asked else undefined(quantised))
        scales.append(scale if asked else undefined(scale))
    if output_mask and not output_mask[1]:
        rows[1] = rows[1].new_empty(0)
    return rows[0], rows[1], total, scales[0], scales[1]


@npu_add_rms_norm_dynamic_quant.check
def _check_add_rms_norm_dynamic_quant(given: Arguments) -> None:
    _check_addends(given.x1, given.x2, given.gamma, given.beta)
    require_range("x1's number of dimensions", given.x1.dim(), 2, 8)
    require_not_empty(x1=given.x1)
    size = given.x1.shape[-1]
    require_shape("gamma", given.gamma, (size,))
    mask = given.output_mask or ()
    require(len(mask) in (0, 2), f"output_mask has {len(mask)} elements; it must have 2 or none")
    require(not mask or any(mask), "output_mask asks for no result; ask for one")
    for place, smooth in enumerate((given.smooth_scale1, given.smooth_scale2)):
        if smooth is None:
            continue
        require_same_dtype(x1=given.x1, smooth_scale=smooth)
        require_shape(f"smooth_scale{place + 1}", smooth, (size,))
        require(
            not mask or bool(mask[place]),
            f"smooth_scale{place + 1} is given; output_mask[{place}] must be True",
        )
