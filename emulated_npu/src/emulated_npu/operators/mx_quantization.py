# SPDX-License-Identifier: Apache-2.0
"""Quantisation to microscaling formats (MX): 8-bit floats, one power of two for 32 of them.

Documented for Ascend 950 only. vllm-ascend's fusion pass names these operators, and uses them on
such a device only. So they compute here, but strict mode, whose device is an Atlas A2, refuses
them.
"""

from __future__ import annotations

import torch

from emulated_npu.operators.norm import normalise
from emulated_npu.operators.norm_quantization import normalised_sum
from emulated_npu.operators.registry import operator
from emulated_npu.operators.requirements import require, require_absent

GROUP = 32
"""Values that share a scale."""

LARGEST_EXPONENT = {torch.float8_e4m3fn: 8, torch.float8_e5m2: 15}
"""Exponent of the largest normal number of a dtype (``emax`` of the formula)."""

FLOAT4_E2M1 = 296
"""torch_npu's own number of the dtype that is meant where none is given, ``float4_e2m1fn_x2``."""

BY_NUMBER = {
    23: torch.float8_e5m2,
    24: torch.float8_e4m3fn,
    291: torch.float8_e5m2,
    292: torch.float8_e4m3fn,
}
"""Dtypes by PyTorch's numbers, for which it takes a dtype, and by torch_npu's own."""

EXPONENT_BIAS = 127
NOT_A_NUMBER = 255
"""Scale of a group that holds an infinity or a NaN."""

ONLY_950 = (
    "Ascend 950 only, which the emulated device, an Atlas A2, is not: refused in strict mode."
)
MISSING = "dst_type other than float8_e4m3fn and float8_e5m2, scale_alg 1."


def quantise_groups(
    wide: torch.Tensor, dst_type: torch.dtype | int, name: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise groups of 32 along the last dimension.

    The scale of a group is two to the power of floor(log2(largest magnitude)) - emax. Larger
    numbers than the dtype's largest are cut to it (OCP Microscaling Formats 1.0, section 6.3).

    Returns values of ``wide``'s shape, and the scales' biased exponents, uint8, with pairs of
    groups as the last two dimensions. The place of a missing group holds 0.
    """
    dtype = dst_type if isinstance(dst_type, torch.dtype) else BY_NUMBER.get(dst_type)
    if dtype not in LARGEST_EXPONENT:
        raise NotImplementedError(
            f"emulated NPU has no torch_npu.{name} with dst_type {dst_type}; it has "
            f"float8_e4m3fn and float8_e5m2"
        )
    columns = wide.shape[-1]
    groups = torch.nn.functional.pad(wide, (0, -columns % GROUP)).unflatten(-1, (-1, GROUP))
    largest = groups.abs().amax(-1)
    # The exponent's bits of a float32; those of a denormal are 0, and so is its scale's exponent.
    biased = largest.view(torch.int32).bitwise_right_shift(23).bitwise_and(255)
    exponent = (biased - LARGEST_EXPONENT[dtype]).clamp(0, 254)
    finite = torch.isfinite(largest)
    limit = torch.finfo(dtype).max
    scaled = groups * torch.exp2(EXPONENT_BIAS - exponent.float()).unsqueeze(-1)
    # A number that is none would stay one through the cut: its group is written as zeros.
    scaled = torch.where(finite.unsqueeze(-1), scaled, torch.zeros_like(scaled))
    values = scaled.clamp(-limit, limit).to(dtype).flatten(-2)[..., :columns].contiguous()
    scales = torch.where(finite, exponent, torch.full_like(exponent, NOT_A_NUMBER)).to(torch.uint8)
    paired = torch.nn.functional.pad(scales, (0, scales.shape[-1] % 2))
    return values, paired.unflatten(-1, (-1, 2))


def _refuse_here() -> None:
    require(False, "it is documented for Ascend 950 only; the emulated device is an Atlas A2")


def _require_scale_alg(scale_alg: int, name: str) -> None:
    if scale_alg:
        raise NotImplementedError(
            f"emulated NPU has no torch_npu.{name} with scale_alg {scale_alg}; it has 0"
        )


@operator(
    "npu_dynamic_mx_quant",
    source="op-plugin docs: torch_npu.npu_add_rms_norm_dynamic_mx_quant (its last step)",
    limits=ONLY_950,
    missing=MISSING + " axis other than the last; block_size other than 32.",
)
def npu_dynamic_mx_quant(
    input: torch.Tensor,
    *,
    axis: int = -1,
    round_mode: str = "rint",
    dst_type: int = FLOAT4_E2M1,
    block_size: int = GROUP,
    scale_alg: int = 0,
    dst_type_max: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See quantise_groups."""
    _require_scale_alg(scale_alg, "npu_dynamic_mx_quant")
    require_absent("npu_dynamic_mx_quant", dst_type_max=dst_type_max)
    if axis not in (-1, input.dim() - 1) or block_size != GROUP or round_mode != "rint":
        raise NotImplementedError(
            f"emulated NPU has no torch_npu.npu_dynamic_mx_quant with axis {axis}, block_size "
            f"{block_size} and round_mode {round_mode}; it has the last axis, {GROUP} and rint"
        )
    return quantise_groups(input.float(), dst_type, "npu_dynamic_mx_quant")


npu_dynamic_mx_quant.check(_refuse_here)


@operator(
    "npu_rms_norm_dynamic_mx_quant",
    source="op-plugin docs: torch_npu.npu_add_rms_norm_dynamic_mx_quant, without the addition",
    limits=ONLY_950,
    missing=MISSING,
)
def npu_rms_norm_dynamic_mx_quant(
    x: torch.Tensor,
    gamma: torch.Tensor,
    *,
    beta: torch.Tensor | None = None,
    epsilon: float = 1e-6,
    scale_alg: int = 0,
    round_mode: str = "rint",
    dst_type: int = FLOAT4_E2M1,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Groups of rms_norm(x) * gamma + beta. Returns values, scales and 1 / rms (float32)."""
    _require_scale_alg(scale_alg, "npu_rms_norm_dynamic_mx_quant")
    quotient, reciprocal_root = normalise(x, gamma.dim(), epsilon)
    y = quotient * gamma.float()
    y = y if beta is None else y + beta.float()
    values, scales = quantise_groups(y, dst_type, "npu_rms_norm_dynamic_mx_quant")
    return values, scales, reciprocal_root


npu_rms_norm_dynamic_mx_quant.check(_refuse_here)


@operator(
    "npu_add_rms_norm_dynamic_mx_quant",
    source="op-plugin docs: torch_npu.npu_add_rms_norm_dynamic_mx_quant",
    limits=ONLY_950,
    missing=MISSING,
)
def npu_add_rms_norm_dynamic_mx_quant(
    x1: torch.Tensor,
    x2: torch.Tensor,
    gamma: torch.Tensor,
    *,
    beta: torch.Tensor | None = None,
    epsilon: float = 1e-6,
    scale_alg: int = 0,
    round_mode: str = "rint",
    dst_type: int = FLOAT4_E2M1,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Groups of rms_norm(x1 + x2) * gamma + beta.

    Returns values, the sum (as x1), scales and 1 / rms (float32).
    """
    _require_scale_alg(scale_alg, "npu_add_rms_norm_dynamic_mx_quant")
    y, total, reciprocal_root = normalised_sum(x1, x2, gamma, beta, epsilon)
    values, scales = quantise_groups(y, dst_type, "npu_add_rms_norm_dynamic_mx_quant")
    return values, total, scales, reciprocal_root


npu_add_rms_norm_dynamic_mx_quant.check(_refuse_here)
