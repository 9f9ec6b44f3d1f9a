# SPDX-License-Identifier: Apache-2.0
"""Rotations whose three axes take turns (interleaved M-RoPE), where Triton is found."""

from __future__ import annotations

from typing import Any

import torch
from vllm.model_executor.layers.rotary_embedding.mrope import MRotaryEmbedding

from mkv_ascend.adapters.patching import patch


@patch(
    name="axes that take turns in a head's rotation in model runner V2",
    target="vllm_ascend.ops.rotary_embedding:AscendMRotaryEmbedding.forward_triton",
    reads=("vllm_ascend.ops.rotary_embedding:AscendMRotaryEmbedding.forward_oot",),
)
def rotate_without_the_kernel(
    original: Any,
    layer: Any,
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    offsets: torch.Tensor | None = None,
) -> Any:
    """The same in torch, as vLLM has it where no kernel is found."""
    return MRotaryEmbedding.forward_native(layer, positions, query, key, offsets)
