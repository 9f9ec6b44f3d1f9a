# SPDX-License-Identifier: Apache-2.0
"""What selection needs to know of this process: the options in force, and the environment.

Also gives attention layers of the draft the window that ``drafting.window`` asks for. The layer is
built with the window as if its model had it. From then on it is any layer with a sliding window:
its spec, its KV group, the blocks that the scheduler gives back, and the left bound that its
operator is called with.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch_npu
import vllm.envs as vllm_envs
from vllm.model_executor.layers.attention import MLAAttention
from vllm.v1.attention.backend import AttentionType
from vllm_ascend.utils import get_ascend_device_type

from mkv_ascend.adapters.common.options import options_of
from mkv_ascend.attention.entry import DeviceGeneration, Environment
from mkv_ascend.attention.options import window_of_layer
from mkv_ascend.attention.selection import SelectionError, SelectionOptions
from mkv_ascend.layout.kind import Role

if TYPE_CHECKING:
    from collections.abc import Collection

    from vllm.config import VllmConfig

    from mkv_ascend.attention.entry import LayerRequest


def options(config: VllmConfig, role: Role) -> SelectionOptions:
    """Our options, and vLLM's own for the model of this role.

    Args:
        config: the configuration that the model is built with: vLLM keeps the draft's backend in
            the draft's own ``attention_config``.
    """
    asked = config.attention_config.backend
    name = None if asked is None else asked.name
    # vLLM 0.23 has no such option.
    by_kind = getattr(config.attention_config, "backend_per_kind", {})
    return SelectionOptions(
        attention=options_of(config).attention,
        vllm_target=name if role is Role.TARGET else None,
        vllm_draft=name if role is Role.DRAFT else None,
        vllm_by_kind=tuple((kind, backend.name) for kind, backend in by_kind.items()),
    )


def draft_window(config: VllmConfig) -> tuple[int | None, int]:
    """``drafting.window``, and the tokens of the longest request."""
    # The draft's own configuration may have a shorter maximum, behind which the target goes on.
    speculative = config.speculative_config
    target = None if speculative is None else speculative.target_model_config
    return options_of(config).drafting.window, (target or config.model_config).max_model_len


def environment(config: VllmConfig) -> Environment:
    """The device and the modes that backends have to work in."""
    generation = get_ascend_device_type().name.lstrip("_")
    graph_mode = config.compilation_config.cudagraph_mode
    return Environment(
        device_generation=DeviceGeneration(generation),
        batch_invariant=bool(vllm_envs.VLLM_BATCH_INVARIANT),
        acl_graphs=graph_mode is not None and graph_mode.has_full_cudagraphs(),
        # Only the emulated NPU has this: float32 where the operators document half precision.
        extra_dtypes=getattr(torch_npu, "emulated_extra_dtypes", frozenset()),
    )


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
