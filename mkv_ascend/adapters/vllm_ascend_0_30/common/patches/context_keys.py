# SPDX-License-Identifier: Apache-2.0
"""Keys of the accepted tokens, which a dflash draft caches, are rotated with and without Triton."""

from __future__ import annotations

from typing import Any

import torch

# First: it puts vllm-ascend's own function there.
from vllm_ascend.patch.worker import patch_qwen3_dflash  # noqa: F401

from mkv_ascend.adapters.patching import patch, replaced


@patch(
    name="rotated keys of a draft of mask tokens",
    target="vllm.model_executor.models.qwen3_dflash:DFlashQwen3Model.precompute_and_store_context_kv",
    reads=(
        "vllm_ascend.patch.worker.patch_qwen3_dflash:precompute_and_store_context_kv",
        "vllm_ascend.ops.rotary_embedding:rope_forward_oot",
    ),
)
def rotate_in_place(original: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
    """As vllm-ascend's, with a rotary embedding that works in place."""
    rotary = model.layers[0].self_attn.rotary_emb
    forward = rotary.forward

    def in_place(
        positions: torch.Tensor, keys: torch.Tensor, *others: torch.Tensor
    ) -> tuple[torch.Tensor, Any]:
        rotated, rest = forward(positions, keys, *others)
        if rotated.data_ptr() != keys.data_ptr():
            keys.copy_(rotated)
        return keys, rest

    with replaced(rotary, "forward", in_place):
        return original(model, *args, **kwargs)
