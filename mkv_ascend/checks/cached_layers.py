# SPDX-License-Identifier: Apache-2.0
"""From the numbers of layers to what planning takes of them: backends, layouts, retentions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from mkv_ascend.attention import ascend_backends as backends
from mkv_ascend.attention.arguments import SINKS
from mkv_ascend.attention.draft_window import WINDOWED_KINDS, window_of_layer
from mkv_ascend.attention.entry import BackendEntry
from mkv_ascend.attention.options import AttentionOptions
from mkv_ascend.attention.request import Environment, LayerRequest
from mkv_ascend.attention.selection import SelectionError, SelectionOptions, select_backends
from mkv_ascend.checks.block_sizes import KERNEL_BLOCK, BlockSizes
from mkv_ascend.checks.compressed_layers import CompressedCache
from mkv_ascend.checks.model_layer import ModelLayer, NamedLayer
from mkv_ascend.layout.building import tokens
from mkv_ascend.layout.component import (
    Component,
    Container,
    LayerLayout,
    StateExtent,
    Storage,
)
from mkv_ascend.layout.kind import Kind, Role
from mkv_ascend.layout.planning import CachedLayer, recurrent_table
from mkv_ascend.layout.recipes import largest_kernel_block
from mkv_ascend.layout.requirements import block_of_kernels
from mkv_ascend.layout.retention import Retention, RetentionKind

__all__ = ["cached_layers", "request_of", "with_draft_window", "with_indexers_apart"]

MLA_PARTS = ("latent", "rope")
INDEXER_BACKEND = "AscendSFAIndexerBackend"
"""Class of vllm-ascend 0.30.0rc2 for the caches of indexers; none is chosen."""


def cached_layers(
    layers: Sequence[NamedLayer],
    sizes: BlockSizes,
    num_draft_tokens: int,
    options: AttentionOptions,
    environment: Environment,
    vllm_backend: str | None = None,
) -> tuple[CachedLayer, ...]:
    """What planning takes of ``layers``. ``vllm_backend``: vLLM's own option for the target.

    Raises SelectionError where no backend can serve a layer, or the options' does not.
    """
    asked = SelectionOptions(attention=options, vllm_target=vllm_backend)
    requests = [request_of(named) for named in layers if not named.layer.is_indexer]
    choices = select_backends(requests, asked, environment)
    chosen = {choice.request.name: choice.backend for choice in choices}
    return tuple(
        _cached(named, sizes, num_draft_tokens, chosen.get(named.name)) for named in layers
    )


def with_indexers_apart(layers: Iterable[NamedLayer]) -> Iterator[NamedLayer]:
    """Layers of sparse attention without the keys of their indexers, each a layer before them.

    As vLLM names and orders them, and vllm-ascend 0.30.0rc2 keeps them.
    """
    for named in layers:
        *attended, key = named.layer.vectors or (0,)
        if len(attended) < len(MLA_PARTS):
            yield named
            continue
        module = named.name.removesuffix(named.layer.module)
        indexer = replace(named.layer, vectors=(key,), is_indexer=True)
        yield replace(named, name=f"{module}self_attn.indexer.k_cache", layer=indexer)
        yield replace(named, layer=replace(named.layer, vectors=tuple(attended)))


def with_draft_window(named: NamedLayer, asked: int | None, longest: int) -> NamedLayer:
    """The layer as ``drafting.window`` (``asked``) makes it in a layer of the draft.

    ``longest``: tokens of the longest request.

    Raises:
        SelectionError: a window is asked for that this layer cannot have.
    """
    layer = named.layer
    if named.role is not Role.DRAFT or window_of_layer(None, asked, longest) is None:
        return named
    if layer.kind not in WINDOWED_KINDS or layer.compressed is not None:
        raise SelectionError(
            f"{named.name}: drafting.window is {asked}, and a layer of {layer.kind} takes no "
            "window. Leave drafting.window out, or choose a draft of layers that attend to all "
            "tokens"
        )
    window = window_of_layer(layer.window or None, asked, longest) or 0
    return replace(named, layer=replace(layer, kind=Kind.SLIDING_WINDOW, window=window))


def _cached(
    named: NamedLayer, sizes: BlockSizes, num_draft_tokens: int, entry: BackendEntry | None
) -> CachedLayer:
    if entry is None:
        return _of_indexer(named, sizes)
    if named.layer.states:
        return _of_states(named, sizes, num_draft_tokens, entry)
    if named.layer.compressed is not None:
        return _of_compressed(named, named.layer.compressed, sizes, entry)
    return _of_tokens(named, sizes, entry)


def _layer_backend(layer: ModelLayer) -> BackendEntry | None:
    """The backend that the layer itself names; None where it is chosen."""
    if layer.compressed is not None:
        return backends.COMPRESSED_MLA
    return _state_backend(layer) if layer.states else None


def _state_backend(layer: ModelLayer) -> BackendEntry:
    if len(layer.states) == 1:
        return backends.SHORT_CONVOLUTION
    return backends.MAMBA_2 if layer.module == "mixer" else backends.GATED_DELTA_NET


def request_of(named: NamedLayer) -> LayerRequest:
    """What the layer needs of its backend."""
    layer = named.layer
    # The indexer's key is not part of a head of the attention itself.
    head_size = sum(layer.vectors[:2]) or layer.head_size
    own = _layer_backend(layer)
    return LayerRequest(
        name=named.name,
        role=named.role,
        kind=layer.kind,
        layer_class="layer of config.json",
        dtype=named.dtype,
        kv_cache_dtype=named.cached_as or "auto",
        head_size=head_size,
        num_heads=layer.num_heads,
        num_kv_heads=layer.num_kv_heads,
        arguments=frozenset({SINKS} if layer.has_sink else ()),
        layer_backend=None if own is None else own.class_path,
    )


def _of_tokens(named: NamedLayer, sizes: BlockSizes, entry: BackendEntry) -> CachedLayer:
    """Keys and values, or the vectors of MLA, as the recipes of ``layout`` make them of specs."""
    layer, rows = named.layer, sizes.attention
    if named.role is Role.DRAFT:  # whatever the target's kernels read
        rows = block_of_kernels(rows, entry.kernel_block_sizes)
    if layer.vectors:
        names = (*MLA_PARTS, "indexer_k")[: len(layer.vectors)]
        parts = [
            tokens(name, rows, 1, dim, named.dtype)
            for name, dim in zip(names, layer.vectors, strict=True)
        ]
    else:
        kept = named.cached_as or named.dtype
        parts = [
            tokens(name, rows, layer.num_kv_heads, dim, kept)
            for name, dim in (("k", layer.head_size), ("v", layer.size_of_values))
        ]
    layout = LayerLayout(
        layer=named.name,
        role=named.role,
        # As the spec tells it: without the indexer's keys it is that of any MLA layer.
        kind=Kind.MLA if len(layer.vectors) == len(MLA_PARTS) else layer.kind,
        components=tuple(parts),
        storage=Storage.PACKED if sizes.packed else Storage.SPLIT,
        page_bytes=sum(part.bytes_per_block for part in parts),
        tokens_per_block=rows,
        kernel_block=largest_kernel_block(rows, entry.kernel_block_sizes),
    )
    return CachedLayer(layout, _retention(layer.window), entry.name)


def _of_indexer(named: NamedLayer, sizes: BlockSizes) -> CachedLayer:
    rows = sizes.attention
    (dim,) = named.layer.vectors
    part = tokens("indexer_k", rows, 1, dim, named.dtype)
    layout = LayerLayout(
        layer=named.name,
        role=named.role,
        kind=named.layer.kind,
        components=(part,),
        storage=Storage.SPLIT,
        page_bytes=part.bytes_per_block,
        tokens_per_block=rows,
        kernel_block=largest_kernel_block(rows, (KERNEL_BLOCK,)),
    )
    return CachedLayer(layout, _retention(0), INDEXER_BACKEND)


def _retention(window: int, tokens_per_row: int = 1) -> Retention:
    if window:
        return Retention(RetentionKind.WINDOW, window)
    return Retention(RetentionKind.ALL, tokens_per_row=tokens_per_row)


def _of_compressed(
    named: NamedLayer, cache: CompressedCache, sizes: BlockSizes, entry: BackendEntry
) -> CachedLayer:
    """A cache of DeepSeek-V4, in a page of the size that all of its kind have."""
    rows = sizes.attention // cache.fewer_rows
    parts = [tokens(name, rows, 1, dim, dtype or named.dtype) for name, dtype, dim in cache.parts]
    layout = LayerLayout(
        layer=named.name,
        role=named.role,
        kind=named.layer.kind,
        components=tuple(parts),
        storage=Storage.PAGED,
        page_bytes=max(
            sum(part.bytes_per_block for part in parts), sizes.attention * cache.page_bytes
        ),
        tokens_per_block=rows * cache.tokens_per_row,
        kernel_block=largest_kernel_block(rows, entry.kernel_block_sizes),
        container=Container.LIST,
    )
    return CachedLayer(layout, _retention(cache.window, cache.tokens_per_row), entry.name)


def _of_states(
    named: NamedLayer, sizes: BlockSizes, num_draft_tokens: int, entry: BackendEntry
) -> CachedLayer:
    shapes = named.layer.states
    names = ("conv",) if len(shapes) == 1 else ("conv", "ssm")
    parts = [
        Component(name, dtype, StateExtent(shape))
        for name, dtype, shape in zip(names, named.state_dtypes, shapes, strict=True)
    ]
    used = sum(part.bytes_per_block for part in parts)
    layout = LayerLayout(
        layer=named.name,
        role=named.role,
        kind=named.layer.kind,
        components=tuple(parts),
        storage=Storage.PACKED if sizes.packed else Storage.PLANAR,
        page_bytes=used,
        tokens_per_block=sizes.tokens_of_states(named.role),
        container=Container.LIST,
    )
    retention = Retention(
        RetentionKind.STATE,
        sizes.kept_states,
        extra_blocks=num_draft_tokens,
        asked_blocks=sizes.asked_states,
    )
    return CachedLayer(layout, retention, entry.name, recurrent_table(layout, entry.name))
