# SPDX-License-Identifier: Apache-2.0
"""Short convolutions (LFM2) whose windows can return to the last accepted token.

vLLM 0.23.0 keeps only as many inputs as the filter needs. A verification of drafts leaves rejected
inputs among them. Here the window also holds all tokens of a verification, as Mamba2's does, and
the update knows how many of them were accepted.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

import torch
from vllm.config import get_current_vllm_config
from vllm.forward_context import get_forward_context
from vllm.model_executor.layers.mamba.mamba_utils import is_conv_state_dim_first
from vllm.v1.attention.backends.short_conv_attn import ShortConvAttentionMetadata

from mkv_ascend.adapters.patching import patch

DRAFTED = "mkv_ascend_drafted"
"""Attribute of a layer: how many draft tokens a step verifies."""

_verified: ContextVar[ShortConvAttentionMetadata | None] = ContextVar("verified", default=None)


@patch(
    name="windows of short convolutions",
    target=(
        "vllm.model_executor.layers.mamba.short_conv:ShortConv.__init__",
        "vllm.model_executor.layers.mamba.short_conv:ShortConv.get_state_shape",
        "vllm.model_executor.layers.mamba.short_conv:ShortConv.forward_cuda",
        "vllm.model_executor.layers.mamba.short_conv:causal_conv1d_update",
    ),
    reads=("vllm.v1.attention.backends.short_conv_attn:ShortConvAttentionMetadataBuilder",),
)
def remember_drafted(original: Any, layer: Any, *args: Any, **kwargs: Any) -> None:
    original(layer, *args, **kwargs)
    setattr(layer, DRAFTED, get_current_vllm_config().num_speculative_tokens)


@remember_drafted.also(
    target="vllm.model_executor.layers.mamba.short_conv:ShortConv.get_state_shape"
)
def _get_state_shape(original: Any, layer: Any) -> tuple[tuple[int, int]]:
    """The shape of the window with the draft tokens of a step behind it."""
    ((first, second),) = original(layer)
    drafted = getattr(layer, DRAFTED)
    if is_conv_state_dim_first():
        return ((first, second + drafted),)
    return ((first + drafted, second),)


@remember_drafted.also(target="vllm.model_executor.layers.mamba.short_conv:ShortConv.forward_cuda")
def _forward(original: Any, layer: Any, hidden_states: torch.Tensor, output: torch.Tensor) -> Any:
    metadata = get_forward_context().attn_metadata
    layer_metadata = metadata.get(layer.prefix) if isinstance(metadata, dict) else None
    before = _verified.set(layer_metadata if getattr(layer, DRAFTED) else None)
    try:
        return original(layer, hidden_states, output)
    finally:
        _verified.reset(before)


@remember_drafted.also(target="vllm.model_executor.layers.mamba.short_conv:causal_conv1d_update")
def _update(original: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
    """``causal_conv1d_update`` with the accepted tokens, if the step knows them."""
    metadata = _verified.get()
    if metadata is not None and metadata.num_accepted_tokens is not None:
        assert metadata.state_indices_tensor_d is not None
        kwargs.update(
            num_accepted_tokens=metadata.num_accepted_tokens,
            query_start_loc=metadata.query_start_loc_d,
            max_query_len=metadata.state_indices_tensor_d.shape[1],
        )
    result: torch.Tensor = original(*args, **kwargs)
    return result
