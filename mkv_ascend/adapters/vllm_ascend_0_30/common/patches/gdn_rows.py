# SPDX-License-Identifier: Apache-2.0
"""Where rows of gated delta nets are padded to the width of a verification.

Kimi delta attention has their metadata, and a class of its own in vllm-ascend 0.30.0rc2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from mkv_ascend.adapters.common.patches import gdn_rows


@gdn_rows.build_of_padded_rows.on_one_host(
    target="vllm_ascend.ops.kimi_kda:AscendKimiK3DeltaAttention._forward"
)
def _of_kimi_delta_attention(
    original: Callable[..., None],
    layer: Any,
    mixed_qkv: torch.Tensor,
    g1: torch.Tensor,
    g2: torch.Tensor,
    beta: torch.Tensor,
    core_attn_out: torch.Tensor,
    **others: Any,
) -> None:
    """``g1``, ``beta`` and the output begin with an axis of one sequence; tokens come second."""
    rows = gdn_rows.padded_rows_of(layer)
    if rows is None:
        original(layer, mixed_qkv, g1, g2, beta, core_attn_out, **others)
        return
    longer = core_attn_out.new_zeros((1, len(rows.source), *core_attn_out.shape[2:]))
    inputs = (
        part.index_select(axis, rows.source)
        for part, axis in ((mixed_qkv, 0), (g1, 1), (g2, 0), (beta, 1))
    )
    original(layer, *inputs, longer, **others)
    core_attn_out[:, : len(rows.kept)] = longer.index_select(1, rows.kept)


def install() -> None:
    """Replace vllm-ascend's methods, where the device has them. Idempotent."""
    from vllm_ascend.device.hardware_profile import (
        HardwareCapability,
        get_current_hardware_profile,
    )

    if get_current_hardware_profile().supports(HardwareCapability.GDN_COMPATIBILITY):
        return  # the 310P has a builder and layers of its own
    gdn_rows.apply()
