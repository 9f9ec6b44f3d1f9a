# SPDX-License-Identifier: Apache-2.0
"""From the numbers of layers to what planning takes of them: backends, layouts, retentions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mkv_ascend.attention import ascend_backends as backends
from mkv_ascend.attention.entry import BackendEntry
from mkv_ascend.attention.options import AttentionOptions
from mkv_ascend.attention.request import Environment, LayerRequest
from mkv_ascend.attention.selection import SelectionOptions, select_backends
from mkv_ascend.checks.compressed_layers import CompressedCache
from mkv_ascend.checks.model_layer import ModelLayer
from mkv_ascend.layout.building import tokens
from mkv_ascend.layout.component import (
    Component,
    Container,
    LayerLayout,
    StateExtent,
    Storage,
    dtype_bytes,
)
from mkv_ascend.layout.kind import Role
from mkv_ascend.layout.planning import CachedLayer, recurrent_table
from mkv_ascend.layout.recipes import largest_kernel_block
from mkv_ascend.layout.retention import Retention, RetentionKind

__all__ = ["KERNEL_BLOCK", "BlockSizes", "NamedLayer", "cached_layers"]

KERNEL_BLOCK = 128
"""Tokens of a block where vllm-ascend is not told otherwise, and of a block of its kernels."""


@dataclass(frozen=True)
class NamedLayer:
    """A layer with its name, the model it is of, and the dtype of its cache.

    ``state_dtype``: of a recurrent state, where it is not that of the cache.
    """

    name: str
    role: Role
    dtype: str
    layer: ModelLayer
    state_dtype: str | None = None

    @property
    def state_dtypes(self) -> tuple[str, ...]:
        """Of each of its states: a convolution's window, and behind it the recurrent one."""
        recurrent = self.state_dtype or self.dtype
        return (self.dtype, *(recurrent for _ in self.layer.states[1:]))


@dataclass(frozen=True)
class BlockSizes:
    """Tokens that a block of attention and one of states stands for.

    ``padded``: bytes that vllm-ascend pads smaller pages to; None where it pads none. Plans do
    without, vLLM's own grouping does not.
    """

    attention: int
    states: int
    padded: int | None = None

    @classmethod
    def of_target(
        cls, target: Sequence[NamedLayer], asked: int | None, max_model_len: int
    ) -> BlockSizes:
        """As vllm-ascend 0.23.0 sets them (``patch/platform/patch_mamba_config.py``).

        Where the target has states, blocks of attention are so large that their keys are as many
        bytes as the largest state, if that can be (where it cannot:
        ``patches/recurrent_blocks.py``).
        """
        states = next((named for named in target if named.layer.states), None)
        attention = next((named for named in target if not named.layer.states), None)
        own = asked or KERNEL_BLOCK
        if states is None or attention is None:
            return cls(own, max_model_len)
        key_bytes = (
            attention.layer.num_kv_heads * attention.layer.head_size * dtype_bytes(attention.dtype)
        )
        shapes = states.layer.aligned_states or states.layer.states
        sizes = [
            math.prod(shape) * dtype_bytes(dtype)
            for shape, dtype in zip(shapes, states.state_dtypes, strict=True)
        ]
        block = KERNEL_BLOCK * -(-max(sizes) // (KERNEL_BLOCK * key_bytes))
        if block * key_bytes != max(sizes):
            return cls(own if own % KERNEL_BLOCK == 0 else KERNEL_BLOCK, max_model_len)
        block = max(block, asked or 0)
        return cls(block, max_model_len, 2 * block * key_bytes + min(sizes))


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
    choices = select_backends([_request(named) for named in layers], asked, environment)
    chosen = {choice.request.name: choice.backend for choice in choices}
    return tuple(_cached(named, sizes, num_draft_tokens, chosen[named.name]) for named in layers)


def _cached(
    named: NamedLayer, sizes: BlockSizes, num_draft_tokens: int, entry: BackendEntry
) -> CachedLayer:
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


def _request(named: NamedLayer) -> LayerRequest:
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
        head_size=head_size,
        num_heads=layer.num_heads,
        num_kv_heads=layer.num_kv_heads,
        has_sink=layer.has_sink,
        layer_backend=None if own is None else own.class_path,
    )


def _of_tokens(named: NamedLayer, sizes: BlockSizes, entry: BackendEntry) -> CachedLayer:
    """Keys and values, or the vectors of MLA, as the recipes of ``layout`` make them of specs."""
    layer, rows = named.layer, sizes.attention
    if layer.vectors:
        names = ("latent", "rope", "indexer_k")[: len(layer.vectors)]
        parts = [
            tokens(name, rows, 1, dim, named.dtype)
            for name, dim in zip(names, layer.vectors, strict=True)
        ]
    else:
        heads, dim = layer.num_kv_heads, layer.head_size
        parts = [tokens(name, rows, heads, dim, named.dtype) for name in ("k", "v")]
    layout = LayerLayout(
        layer=named.name,
        role=named.role,
        kind=layer.kind,
        components=tuple(parts),
        storage=Storage.SPLIT,
        page_bytes=sum(part.bytes_per_block for part in parts),
        tokens_per_block=rows,
        kernel_block=largest_kernel_block(rows, entry.kernel_block_sizes),
    )
    return CachedLayer(layout, _retention(layer.window), entry.name)


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
    layout = LayerLayout(
        layer=named.name,
        role=named.role,
        kind=named.layer.kind,
        components=tuple(parts),
        storage=Storage.PLANAR,
        page_bytes=sum(part.bytes_per_block for part in parts),
        tokens_per_block=sizes.states,
        container=Container.LIST,
    )
    retention = Retention(RetentionKind.STATE, 1, extra_blocks=num_draft_tokens)
    return CachedLayer(layout, retention, entry.name, recurrent_table(layout, entry.name))
