# SPDX-License-Identifier: Apache-2.0
"""Tensors in the NZ format, which torch_npu alone can make."""

from __future__ import annotations

import torch

ACL_FORMAT_FRACTAL_NZ = 29
"""CANN's number of the format (aclFormat)."""


def empty_in_nz(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """An uninitialised tensor in NZ format, as ``layout.materialize`` asks for it."""
    import torch_npu

    tensor: torch.Tensor = torch_npu.empty_with_format(
        size=shape, dtype=dtype, device=device, acl_format=ACL_FORMAT_FRACTAL_NZ
    )
    return tensor
