# SPDX-License-Identifier: Apache-2.0
"""Gives attention layers of the draft the window that ``drafting.window`` asks for.

The layer is built with the window as if its model had it. From then on it is any layer with a
sliding window: its spec, its KV group, the blocks that the scheduler gives back, and the left bound
that its operator is called with.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm.model_executor.layers.attention import MLAAttention
from vllm.v1.attention.backend import AttentionType

from mkv_ascend.adapters.common.attention.selection_inputs import draft_window
from mkv_ascend.attention.options import window_of_layer
from mkv_ascend.attention.selection import SelectionError

if TYPE_CHECKING:
    from collections.abc import Collection

    from vllm.config import VllmConfig

    from mkv_ascend.attention.entry import LayerRequest

LEAVE_IT_OUT = "Leave drafting.window out, or choose a draft of layers that attend to all tokens"


def set_window(
    layer: Any, arguments: dict[str, Any], own_backend: bool, config: VllmConfig
) -> None:
    """Set the window in the arguments of a layer of the draft that is about to be made.

    Args:
        own_backend: whether the layer's class or model names its backend.

    Raises:
        SelectionError: a window is asked for that this layer cannot have.
    """
    asked, longest = draft_window(config)
    if window_of_layer(None, asked, longest) is None:
        return
    name = arguments["prefix"]
    if isinstance(layer, MLAAttention):
        raise SelectionError(
            f"{name}: drafting.window is {asked}, and no operator for MLA takes a window. "
            + LEAVE_IT_OUT
        )
    if own_backend or arguments["attn_type"] != AttentionType.DECODER:
        raise SelectionError(
            f"{name}: drafting.window is {asked}, and this {type(layer).__name__} chooses by "
            f"itself what it attends to. {LEAVE_IT_OUT}"
        )
    cache_config = arguments["cache_config"]
    own = arguments["per_layer_sliding_window"]
    if own is None and cache_config is not None:
        own = cache_config.sliding_window
    arguments["per_layer_sliding_window"] = window_of_layer(own, asked, longest)


def check_used(config: VllmConfig, draft: Collection[LayerRequest]) -> None:
    """Check, after all models are built, that the window does what is asked for.

    Raises:
        SelectionError: the draft has no attention layer, or its blocks would never be given back.
    """
    window, longest = draft_window(config)
    if window is None:
        return
    if not draft:
        raise SelectionError(
            f"drafting.window is {window}, but no layer of the draft has a KV cache whose backend "
            "is chosen; leave it out"
        )
    unused = window_of_layer(None, window, longest) is None
    if config.scheduler_config.disable_hybrid_kv_cache_manager and not unused:
        raise SelectionError(
            f"drafting.window is {window}, but the scheduler gives no blocks back: "
            "--disable-hybrid-kv-cache-manager is set, or vLLM has set it for a KV connector that "
            "does not know several KV groups. Leave one of them out"
        )
