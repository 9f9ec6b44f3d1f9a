# SPDX-License-Identifier: Apache-2.0
"""Where states may lie in memory: apart from each other, each one dense."""

from __future__ import annotations

import torch

from emulated_npu.operators.requirements import require


def require_dense_states(name: str, states: torch.Tensor) -> None:
    """Refuse states [blocks, ...] of which one is not contiguous, or that lie over each other."""
    layout = f"{name} (shape {tuple(states.shape)}, strides {states.stride()})"
    if not states.numel():
        return
    require(
        states[0].is_contiguous(),
        f"{layout} has states that are not contiguous; only the distance of blocks is free",
    )
    size = states[0].numel()
    require(
        states.shape[0] == 1 or states.stride(0) >= size,
        f"{layout} has blocks that overlap: {size} numbers every {states.stride(0)}",
    )
