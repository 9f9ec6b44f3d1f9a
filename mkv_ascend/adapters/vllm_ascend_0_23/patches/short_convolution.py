# SPDX-License-Identifier: Apache-2.0
"""Short convolutions (LFM2) whose windows can be taken back to the last accepted token.

vLLM 0.23.0 keeps as many inputs as the filter needs, and a verification of drafts leaves the
rejected ones in them. Here the window also holds all tokens of a verification, as that of Mamba2
does, and the update is told how many of them were accepted.
"""

from __future__ import annotations

import functools
import inspect
from contextvars import ContextVar
from typing import Any

import torch
from vllm.config import get_current_vllm_config
from vllm.forward_context import get_forward_context
from vllm.model_executor.layers.mamba import short_conv
from vllm.model_executor.layers.mamba.mamba_utils import is_conv_state_dim_first
from vllm.model_executor.layers.mamba.short_conv import ShortConv
from vllm.v1.attention.backends.short_conv_attn import ShortConvAttentionMetadata

from mkv_ascend.adapters.guards import expect

PATCH = "windows of short convolutions"
DRAFTED = "mkv_ascend_drafted"
"""Attribute of a layer: how many draft tokens a step verifies."""

_verified: ContextVar[ShortConvAttentionMetadata | None] = ContextVar("verified", default=None)


def install() -> None:
    """Replace three methods of ``ShortConv`` and the update that it calls. Idempotent."""
    if hasattr(ShortConv.forward_cuda, "mkv_ascend_original"):
        return
    parameters = tuple(inspect.signature(ShortConv.forward_cuda).parameters)
    expect(
        parameters == ("self", "hidden_states", "output"),
        PATCH,
        f"ShortConv.forward_cuda takes {parameters}",
    )
    update = getattr(short_conv, "causal_conv1d_update", None)
    expect(callable(update), PATCH, "the module of ShortConv has no causal_conv1d_update")
    short_conv.causal_conv1d_update = functools.partial(_update, update)
    _wrap("__init__", _initialise)
    _wrap("get_state_shape", _get_state_shape)
    _wrap("forward_cuda", _forward)


def _wrap(name: str, replacement: Any) -> None:
    original = getattr(ShortConv, name)

    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return replacement(original, self, *args, **kwargs)

    method.mkv_ascend_original = original  # type: ignore[attr-defined]
    setattr(ShortConv, name, method)


def _initialise(original: Any, layer: Any, *args: Any, **kwargs: Any) -> None:
    original(layer, *args, **kwargs)
    setattr(layer, DRAFTED, get_current_vllm_config().num_speculative_tokens)


def _get_state_shape(original: Any, layer: Any) -> tuple[tuple[int, int]]:
    """The window and, behind it, the draft tokens of a step."""
    ((first, second),) = original(layer)
    drafted = getattr(layer, DRAFTED)
    if is_conv_state_dim_first():
        return ((first, second + drafted),)
    return ((first + drafted, second),)


def _forward(original: Any, layer: Any, hidden_states: torch.Tensor, output: torch.Tensor) -> Any:
    metadata = get_forward_context().attn_metadata
    of_layer = metadata.get(layer.prefix) if isinstance(metadata, dict) else None
    before = _verified.set(of_layer if getattr(layer, DRAFTED) else None)
    try:
        return original(layer, hidden_states, output)
    finally:
        _verified.reset(before)


def _update(original: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
    """``causal_conv1d_update``, told what was accepted where the step knows."""
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
