# SPDX-License-Identifier: Apache-2.0
"""From the spec of a layer to its layout: one recipe for each kind of spec.

This module has keys and values, states and hidden states; those with a latent vector are in
``recipes_latent.py``, and how a spec finds its recipe in ``registry.py``. Shapes are those that
vllm-ascend 0.23.0 gives its backends (vllm_ascend/worker/model_runner_v1.py,
_reshape_kv_cache_tensors; vllm_ascend/_310p/model_runner_310p.py).
"""

from __future__ import annotations

from typing import Any

from mkv_ascend.layout import recipes_latent
from mkv_ascend.layout.component import (
    Component,
    Container,
    LayerLayout,
    LayoutError,
    MemoryFormat,
    StateExtent,
    Storage,
    TokenExtent,
    TokenOrder,
)
from mkv_ascend.layout.kind import Kind
from mkv_ascend.layout.registry import (
    LayerFacts,
    Recipe,
    build_layout,
    dtype_name,
    hashed,
    layout_of,
    refuse_quantisation,
    register_recipe,
    tokens,
    unregister_recipe,
)

__all__ = [
    "LayerFacts",
    "Recipe",
    "build_layout",
    "largest_kernel_block",
    "layout_of",
    "register_recipe",
    "unregister_recipe",
]

NZ_BLOCK_LIMIT = 128 * 128
"""Rows of a block times head size that paged attention of Ascend 310P takes."""


def largest_kernel_block(block_size: int, supported: tuple[int, ...], limit: int) -> int | None:
    """The largest supported kernel block of at most ``limit`` rows that divides ``block_size``."""
    fitting = [size for size in supported if size <= limit and block_size % size == 0]
    return max(fitting, default=None)


def _keys_and_values(spec: Any, facts: LayerFacts, kind: Kind) -> LayerLayout:
    refuse_quantisation(spec, facts)
    order = TokenOrder.TOKENS_HEADS_DIM
    if facts.memory_format is MemoryFormat.NZ:
        order = TokenOrder.NZ
    value_dim = getattr(spec, "head_size_v", None) or spec.head_size
    components = [
        Component(
            name,
            dtype or dtype_name(spec.dtype),
            TokenExtent(spec.block_size, spec.num_kv_heads, dim, order),
        )
        for name, dim, dtype in (
            ("k", spec.head_size, facts.key_dtype),
            ("v", value_dim, facts.value_dtype),
        )
    ]
    if facts.hashed_keys:
        components.append(hashed(components[0]))
    return build_layout(spec, facts, kind, components)


def _recipe_of_keys_and_values(kind: Kind) -> Recipe:
    def recipe(spec: Any, facts: LayerFacts) -> LayerLayout:
        return _keys_and_values(spec, facts, kind)

    return recipe


def _state_names(shapes: tuple[tuple[int, ...], ...]) -> list[str]:
    """The last state is the recurrent one, those before it are windows of convolutions.

    A short convolution has a window only: two axes.
    """
    if len(shapes) == 1:
        return ["conv" if len(shapes[0]) == 2 else "ssm"]
    if len(shapes) == 2:
        return ["conv", "ssm"]
    return [*(f"conv_{index}" for index in range(len(shapes) - 1)), "ssm"]


def _states(spec: Any, facts: LayerFacts) -> LayerLayout:
    shapes = tuple(tuple(int(size) for size in shape) for shape in spec.shapes)
    dtypes = [dtype_name(dtype) for dtype in spec.dtypes]
    if len(shapes) != len(dtypes):
        raise LayoutError(f"layer {facts.layer}: {len(shapes)} states of {len(dtypes)} dtypes")
    components = [
        Component(name, dtype, StateExtent(shape))
        for name, shape, dtype in zip(_state_names(shapes), shapes, dtypes, strict=True)
    ]
    return build_layout(
        spec,
        facts,
        Kind.MAMBA,
        components,
        container=Container.LIST,
        contiguous=Storage.PLANAR,
    )


def _hidden_states(spec: Any, facts: LayerFacts) -> LayerLayout:
    """Hidden states for another model: a "head" per layer whose states are kept."""
    hidden = tokens("hidden", spec.block_size, spec.num_kv_heads, spec.head_size, spec.dtype)
    return build_layout(
        spec, facts, Kind.HIDDEN_STATE, [hidden], container=Container.TENSOR, takes_strides=True
    )


def _no_cache(spec: Any, facts: LayerFacts) -> LayerLayout:
    raise LayoutError(
        f"layer {facts.layer}: a {type(spec).__name__} keeps no cache; leave the layer out"
    )


def _several(spec: Any, facts: LayerFacts) -> LayerLayout:
    raise LayoutError(
        f"layer {facts.layer}: {type(spec).__name__} holds the specs of several layers; plan each "
        "layer from its own"
    )


register_recipe("FullAttentionSpec", _recipe_of_keys_and_values(Kind.FULL_ATTENTION))
register_recipe("SlidingWindowSpec", _recipe_of_keys_and_values(Kind.SLIDING_WINDOW))
register_recipe("ChunkedLocalAttentionSpec", _recipe_of_keys_and_values(Kind.CHUNKED_LOCAL))
register_recipe("CrossAttentionSpec", _recipe_of_keys_and_values(Kind.CROSS_ATTENTION))
register_recipe("MambaSpec", _states)
register_recipe("HiddenStateCacheSpec", _hidden_states)
register_recipe("EncoderOnlyAttentionSpec", _no_cache)
register_recipe("UniformTypeKVCacheSpecs", _several)
recipes_latent.register()
