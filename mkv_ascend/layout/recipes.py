# SPDX-License-Identifier: Apache-2.0
"""From the spec of a layer to its layout: one recipe for each kind of spec.

A spec is anything with the attributes of vLLM's ``KVCacheSpec`` classes (vllm/v1/
kv_cache_interface.py) or vllm-ascend's (vllm_ascend/core/kv_cache_interface.py); nothing is
imported. The recipe is found by the names of the spec's class and its bases, most derived first,
never by the name of the layer. Another package adds a kind with one recipe and one call:

    register_recipe("MySpec", my_recipe)

Shapes, dtypes and the order of components are
those that vllm-ascend 0.23.0 gives its backends: vllm_ascend/worker/model_runner_v1.py
(_reshape_kv_cache_tensors), vllm_ascend/core/kv_cache_interface.py, and for DeepSeek-V4 also
vllm_ascend/models/deepseek_v4.py.

Contiguous components are not padded: specs are padded to make pages equal, and pools share planes
instead. PAGED layouts keep the page that the spec asks for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from mkv_ascend.layout.component import (
    Component,
    Container,
    LayerLayout,
    LayoutError,
    StateExtent,
    Storage,
    TokenExtent,
    exact_quotient,
    used_bytes,
)
from mkv_ascend.layout.kind import Kind, Role

DEEPSEEK_V4 = "deepseek_v4"


@dataclass(frozen=True)
class LayerFacts:
    """What a recipe must know of a layer beyond its spec.

    ``kernel_block``: rows per block of its backend, None where it takes the manager's.
    ``takes_strides``: whether its operators take any stride between blocks. Caches of DeepSeek-V4
    and of hidden states take pages one behind the other anyhow.
    ``latent_dim``, ``rope_dim``: of MLA layers, whose spec has only the sum.
    ``key_dtype``, ``value_dtype``: of quantised caches, where they are not the spec's (for MLA the
    latent is the key, the rope the value).
    ``full_indexer_view``: A5 reads keys and scales of DeepSeek-V4's indexer as one tensor too.
    ``ranks``: where ranks share each sequence's keys, and this layer keeps all of them on each of
    these ranks: a block has as many times its tokens, and so has its kernel block.
    """

    layer: str
    role: Role
    kernel_block: int | None = None
    takes_strides: bool = False
    latent_dim: int | None = None
    rope_dim: int | None = None
    key_dtype: str | None = None
    value_dtype: str | None = None
    full_indexer_view: bool = False
    ranks: int = 1


Recipe = Callable[[Any, LayerFacts], LayerLayout]


def dtype_name(dtype: object) -> str:
    """``bfloat16`` of ``torch.bfloat16``, or of the string itself."""
    return str(dtype).removeprefix("torch.")


def tokens(
    name: str, rows: int, heads: int, dim: int, dtype: object, *, replicas: int = 1
) -> Component:
    """A component with a row per token, in the order (tokens, heads, dim)."""
    return Component(name, dtype_name(dtype), TokenExtent(rows, heads, dim), replicas)


def _rows(spec: Any, name: str, dim: int, dtype: object = None, *, replicas: int = 1) -> Component:
    """The same with rows, heads and, if no other is given, the dtype of the spec."""
    dtype = dtype or spec.dtype
    return tokens(name, spec.block_size, spec.num_kv_heads, dim, dtype, replicas=replicas)


def build_layout(
    spec: Any,
    facts: LayerFacts,
    kind: Kind,
    components: list[Component],
    *,
    container: Container = Container.TUPLE,
    takes_strides: bool = False,
    tokens_per_block: int | None = None,
) -> LayerLayout:
    """A layout whose components must add up to the page that the spec counts, or those padded.

    ``takes_strides``: whether the operators take pages one behind the other. ``tokens_per_block``:
    where it is not the spec's block size.
    """
    used, page = used_bytes(components), spec.page_size_bytes
    padded: int = getattr(spec, "page_size_padded", None) or 0
    # AscendMLAAttentionSpec has page_size_padded but does not add it to its page.
    if used != page and (padded < used or page != padded):
        raise LayoutError(
            f"layer {facts.layer}: {type(spec).__name__} counts {page} bytes per block, its "
            f"components need {used}; the recipe and the spec do not fit"
        )
    storage = Storage.PAGED if takes_strides else Storage.SPLIT
    if facts.takes_strides:
        storage = Storage.PACKED
    return LayerLayout(
        layer=facts.layer,
        role=facts.role,
        kind=kind,
        components=tuple(components),
        storage=storage,
        page_bytes=max(used, padded) if storage is Storage.PAGED else used,
        tokens_per_block=spec.block_size if tokens_per_block is None else tokens_per_block,
        kernel_block=facts.kernel_block,
        container=container,
    )


def _refuse_quantisation(spec: Any, facts: LayerFacts) -> None:
    """Packed and per-token-head caches of vLLM, which no backend of vllm-ascend serves."""
    mode, change = getattr(spec, "kv_quant_mode", None), "choose another --kv-cache-dtype"
    refused = {
        f"KV quantisation {getattr(mode, 'name', mode)} is not planned; {change}": (
            getattr(mode, "is_per_token_head", False) or getattr(mode, "is_nvfp4", False)
        ),
        "TurboQuant caches are not planned": getattr(spec, "tq_slot_size", 0),
        f"fp8_ds_mla is a CUDA format; {change}": (
            getattr(spec, "cache_dtype_str", None) == "fp8_ds_mla"
        ),
    }
    for why, is_so in refused.items():
        if is_so:
            raise NotImplementedError(f"layer {facts.layer}: {why}")


def _keys_and_values(kind: Kind, spec: Any, facts: LayerFacts) -> LayerLayout:
    _refuse_quantisation(spec, facts)
    value_dim = getattr(spec, "head_size_v", None) or spec.head_size
    # A spec counts the tokens of a share. For all tokens it has the heads of all ranks.
    what = f"layer {facts.layer}: key heads of its spec by {facts.ranks} ranks"
    heads = exact_quotient(spec.num_kv_heads, facts.ranks, what)
    components = [
        tokens(name, spec.block_size * facts.ranks, heads, dim, dtype or spec.dtype)
        for name, dim, dtype in (
            ("k", spec.head_size, facts.key_dtype),
            ("v", value_dim, facts.value_dtype),
        )
    ]
    return build_layout(spec, facts, kind, components)


def _recurrent(spec: Any, facts: LayerFacts) -> LayerLayout:
    """The last state is the recurrent one, those before it are windows of convolutions.

    A short convolution has a window only: two axes.
    """
    shapes = tuple(tuple(int(size) for size in shape) for shape in spec.shapes)
    dtypes = [dtype_name(dtype) for dtype in spec.dtypes]
    if len(shapes) != len(dtypes):
        raise LayoutError(f"layer {facts.layer}: {len(shapes)} states of {len(dtypes)} dtypes")
    several = len(shapes) > 2
    names = [f"conv_{index}" if several else "conv" for index in range(len(shapes) - 1)]
    names.append("conv" if len(shapes) == 1 and len(shapes[0]) == 2 else "ssm")
    components = [
        Component(name, dtype, StateExtent(shape))
        for name, shape, dtype in zip(names, shapes, dtypes, strict=True)
    ]
    return build_layout(spec, facts, Kind.MAMBA, components, container=Container.LIST)


def _hidden_states(spec: Any, facts: LayerFacts) -> LayerLayout:
    """Hidden states for another model: a "head" per layer whose states are kept."""
    hidden = _rows(spec, "hidden", spec.head_size)
    return build_layout(
        spec, facts, Kind.HIDDEN_STATE, [hidden], container=Container.TENSOR, takes_strides=True
    )


def _mla(spec: Any, facts: LayerFacts) -> LayerLayout:
    """MLA in all its forms; the spec's own fields say which."""
    _refuse_quantisation(spec, facts)
    if getattr(spec, "model_version", None) == DEEPSEEK_V4:
        return _compressed(spec, facts)
    if getattr(spec, "sparse_head_dim", None) is not None:
        return _sparse(spec, facts)
    if getattr(spec, "cache_sparse_sfa_c8", False):
        # Since 0.30.0rc2 the indexer is a layer of its own.
        return build_layout(spec, facts, Kind.SPARSE_MLA, [_rows(spec, "latent", spec.head_size)])
    return _dense_mla(spec, facts)


def _dense_mla(spec: Any, facts: LayerFacts) -> LayerLayout:
    if facts.latent_dim is None or facts.rope_dim is None:
        raise LayoutError(
            f"layer {facts.layer}: its spec has a head size of {spec.head_size} and not how much "
            "of it is latent and rope; give latent_dim and rope_dim of the layer"
        )
    quantised = facts.key_dtype is not None or facts.value_dtype is not None
    if not quantised and facts.latent_dim + facts.rope_dim != spec.head_size:
        raise LayoutError(
            f"layer {facts.layer}: latent {facts.latent_dim} and rope {facts.rope_dim} are not the "
            f"head size {spec.head_size} of its spec"
        )
    latent = _rows(spec, "latent", facts.latent_dim, facts.key_dtype)
    rope = _rows(spec, "rope", facts.rope_dim, facts.value_dtype)
    return build_layout(spec, facts, Kind.MLA, [latent, rope])


def _sparse(spec: Any, facts: LayerFacts) -> LayerLayout:
    """DeepSeek sparse attention: latent and rope or both packed, an indexer or another layer's.

    ``sparse_head_dim`` is (latent, rope, indexer); (packed, 0, indexer) when packed. An indexer of
    0 is a layer that reuses another's top-k. Quantised indexer keys have a scale per row.
    """
    first, rope, indexer = spec.sparse_head_dim
    if spec.cache_sparse_sfa_c8:
        if rope:
            raise LayoutError(f"layer {facts.layer}: packed latent with a rope of {rope} besides")
        parts = [_rows(spec, "latent", first, spec.c8_k_cache_dtype)]
    else:
        parts = [_rows(spec, "latent", first), _rows(spec, "rope", rope)]
    if indexer and spec.cache_sparse_li_c8:
        scale = 1, spec.c8_k_scale_cache_dtype
        parts += _indexer(spec, indexer, spec.c8_k_cache_dtype, scale)
    elif indexer:
        parts += _indexer(spec, indexer, spec.dtype, None)
    return build_layout(spec, facts, Kind.SPARSE_MLA, parts)


def _indexer_layer(spec: Any, facts: LayerFacts) -> LayerLayout:
    """The indexer of DeepSeek sparse attention where it is a layer of its own (0.30.0rc2)."""
    scale = (spec.scale_dim, spec.scale_dtype) if spec.scale_dim else None
    parts = _indexer(spec, spec.head_size, spec.dtype, scale)
    return build_layout(spec, facts, Kind.SPARSE_MLA, parts)


def _indexer(
    spec: Any, dim: int, dtype: object, scale: tuple[int, object] | None
) -> list[Component]:
    """Keys, and scales of as many numbers in a dtype where the keys are quantised."""
    replicas = spec.sfa_dcp_replicated_indexer_size
    parts = [_rows(spec, "indexer_k", dim, dtype, replicas=replicas)]
    if scale is not None:
        parts.append(_rows(spec, "indexer_scale", *scale, replicas=replicas))
    return parts


def tokens_per_row(spec: Any) -> int:
    """Tokens that one row of a compressed cache stands for; vLLM 0.30 has renamed it."""
    return int(getattr(spec, "tokens_per_state", getattr(spec, "compress_ratio", 1)))


_build_compressed = partial(
    build_layout, kind=Kind.COMPRESSED_MLA, container=Container.LIST, takes_strides=True
)


def _compressed(spec: Any, facts: LayerFacts) -> LayerLayout:
    """DeepSeek-V4: compressed tokens, or its indexer's keys with their scales in the same page.

    A row stands for several tokens. The spec of vllm-ascend 0.23 has ``block_size`` rows in a
    block; vLLM's own, which has no ``scale_dim``, and those of 0.30 have as many tokens.
    """
    scale_dim, heads = getattr(spec, "scale_dim", 0), spec.num_kv_heads
    ratio, rows = tokens_per_row(spec), spec.block_size
    in_tokens = hasattr(spec, "tokens_per_state")
    if in_tokens or not hasattr(spec, "scale_dim"):
        rows //= ratio
    if in_tokens and facts.kernel_block:
        facts = replace(facts, kernel_block=facts.kernel_block // ratio)
    name = "indexer_k" if scale_dim else "latent"
    components = [tokens(name, rows, heads, spec.head_size, spec.dtype)]
    if scale_dim:
        components.append(tokens("indexer_scale", rows, heads, scale_dim, spec.scale_dtype))
    if scale_dim and facts.full_indexer_view:
        item = components[0].item_bytes
        scale = exact_quotient(scale_dim * components[1].item_bytes, item, "scale by element")
        whole = TokenExtent(rows, heads, spec.head_size + scale)
        components.append(Component("indexer_row", dtype_name(spec.dtype), whole, overlay=True))
    return _build_compressed(spec, facts, components=components, tokens_per_block=rows * ratio)


def _window_mla(spec: Any, facts: LayerFacts) -> LayerLayout:
    """DeepSeek-V4's window of uncompressed tokens, and the state of its compressor."""
    _refuse_quantisation(spec, facts)
    name = "latent" if spec.model_version == DEEPSEEK_V4 else "compressor_state"
    rows = getattr(spec, "storage_block_size", spec.block_size)
    part = tokens(name, rows, spec.num_kv_heads, spec.head_size, spec.dtype)
    return _build_compressed(spec, facts, components=[part])


def _refuse(why: str, spec: Any, facts: LayerFacts) -> LayerLayout:
    raise LayoutError(f"layer {facts.layer}: {why.format(type(spec).__name__)}")


_RECIPES: dict[str, Recipe] = {
    "FullAttentionSpec": partial(_keys_and_values, Kind.FULL_ATTENTION),
    "SlidingWindowSpec": partial(_keys_and_values, Kind.SLIDING_WINDOW),
    "ChunkedLocalAttentionSpec": partial(_keys_and_values, Kind.CHUNKED_LOCAL),
    "CrossAttentionSpec": partial(_keys_and_values, Kind.CROSS_ATTENTION),
    "MambaSpec": _recurrent,
    "HiddenStateCacheSpec": _hidden_states,
    "EncoderOnlyAttentionSpec": partial(_refuse, "a {} keeps no cache; leave the layer out"),
    "UniformTypeKVCacheSpecs": partial(
        _refuse, "{} holds the specs of several layers; plan each layer from its own"
    ),
    "MLAAttentionSpec": _mla,
    "AscendSFAIndexerCacheSpec": _indexer_layer,
    "SlidingWindowMLASpec": _window_mla,
}
"""Name of a class of specs -> its recipe."""


def register_recipe(spec_class: str, recipe: Recipe) -> None:
    """Use ``recipe`` for specs of the class of this name; ValueError when the name is taken."""
    if spec_class in _RECIPES:
        raise ValueError(f"there is a recipe for {spec_class} already")
    _RECIPES[spec_class] = recipe


def layout_of(spec: Any, facts: LayerFacts) -> LayerLayout:
    """The layout of one layer; LayoutError when its spec has no recipe or does not add up."""
    for kind in type(spec).__mro__:
        if kind.__name__ in _RECIPES:
            return _RECIPES[kind.__name__](spec, facts)
    raise LayoutError(
        f"layer {facts.layer}: no recipe for a spec of class {type(spec).__name__}; known: "
        f"{', '.join(sorted(_RECIPES))}. Add one with register_recipe"
    )
