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
    why="vllm-ascend calls vLLM's kernel without is_neox_style, which vLLM 0.30.0 asks for, and "
    "the engine ends. Qwen3-VL's own layers call another kernel; a head on it, whose layer is "
    "Llama's, comes here.",
    until="vllm-ascend hands is_neox_style on",
    test=(
        "tests/emulated/drafting/test_pictures.py::test_a_head_whose_axes_take_turns",
        "tests/emulated/runner_v2/test_axes_in_turns.py",
    ),
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
