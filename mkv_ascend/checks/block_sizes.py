# SPDX-License-Identifier: Apache-2.0
"""Tokens of blocks, and bytes that pages are padded to, as hosts set them by a target's layers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mkv_ascend.checks.model_layer import NamedLayer
from mkv_ascend.layout.component import dtype_bytes
from mkv_ascend.layout.kind import Role

__all__ = ["KERNEL_BLOCK", "BlockSizes", "takes_asked_size"]

KERNEL_BLOCK = 128
"""Tokens of a block where vllm-ascend is not told otherwise, and of a block of its kernels."""


def takes_asked_size(engine: Mapping[str, Any], beside_states: bool) -> bool:
    """Whether vllm-ascend takes ``--block-size``: with prefix caching or chunks, both of which vLLM
    switches on by itself, only for targets with attention beside states
    (``vllm_ascend.utils.refresh_block_size``; DeepSeek-V4 has sizes of its own)."""
    plain = ("enable_prefix_caching", "enable_chunked_prefill")
    return beside_states or all(engine.get(name) is False for name in plain)


@dataclass(frozen=True)
class BlockSizes:
    """Tokens that a block of attention and one of states stands for.

    ``padded``: bytes that vllm-ascend pads smaller pages to; None where it pads none. Plans do
    without, vLLM's own grouping does not. ``packed``: whether all layers take any stride.
    ``kept_states``: that a request holds without those of its draft tokens. ``hits``: whether
    prefix hits find states of the target at ends of blocks. ``asked_states``: blocks that must be
    free beside those of a group of states, though they are never taken.
    """

    attention: int
    states: int
    padded: int | None = None
    packed: bool = False
    kept_states: int = 1
    hits: bool = False
    asked_states: int = 1

    def with_hits_beside_states(self) -> BlockSizes:
        """States at the end of a block are kept, too (vLLM's mode "align").

        vLLM counts two states of a request of the draft, too, which keeps one.
        """
        return replace(self, hits=True, kept_states=2)

    def tokens_of_states(self, role: Role) -> int:
        """Tokens that a block of states stands for; a draft's are kept at no end of a block."""
        return self.attention if self.hits and role is Role.TARGET else self.states

    @classmethod
    def of_layers(
        cls, layers: Sequence[NamedLayer], asked: int | None, max_model_len: int, equal_pages: bool
    ) -> BlockSizes:
        """As the host sets them by the target's layers. ``equal_pages``: of ``HostRules``."""
        target = [named for named in layers if named.role is Role.TARGET]
        states = next((named for named in target if named.layer.states), None)
        attention = next((named for named in target if not named.layer.states), None)
        own = asked or KERNEL_BLOCK
        packed = equal_pages and _take_strides(layers)
        if states is None or attention is None:
            return cls(own, max_model_len, _page_of_states(layers) if equal_pages else None, packed)
        if equal_pages:
            least = max(own, KERNEL_BLOCK)
            return cls._with_equal_pages(states, attention, least, max_model_len, packed)
        return cls._with_equal_keys(states, attention, asked, max_model_len)

    @classmethod
    def _with_equal_pages(
        cls, states: NamedLayer, attention: NamedLayer, least: int, max_model_len: int, packed: bool
    ) -> BlockSizes:
        """As vLLM 0.30.0 sets them (``Platform._align_hybrid_block_size``).

        Blocks of attention are the least multiple of ``least``, a kernel block or what was asked
        for, whose page holds the states of a layer.
        """
        row = _row_bytes(attention)
        block = least * -(-sum(_aligned_bytes(states)) // (least * row))
        return cls(block, max_model_len, block * row, packed)

    @classmethod
    def _with_equal_keys(
        cls, states: NamedLayer, attention: NamedLayer, asked: int | None, max_model_len: int
    ) -> BlockSizes:
        """As vllm-ascend 0.23.0 sets them (``patch/platform/patch_mamba_config.py``).

        Blocks of attention are so large that their keys are as many bytes as the largest state, if
        that can be (where it cannot: ``patches/recurrent_blocks.py``).
        """
        own = asked or KERNEL_BLOCK
        key_bytes = (
            attention.layer.num_kv_heads * attention.layer.head_size * dtype_bytes(attention.dtype)
        )
        sizes = _aligned_bytes(states)
        block = KERNEL_BLOCK * -(-max(sizes) // (KERNEL_BLOCK * key_bytes))
        if block * key_bytes != max(sizes):
            return cls(own if own % KERNEL_BLOCK == 0 else KERNEL_BLOCK, max_model_len)
        block = max(block, asked or 0)
        return cls(block, max_model_len, 2 * block * key_bytes + min(sizes))


def _aligned_bytes(states: NamedLayer) -> list[int]:
    """Bytes of each state of a layer, as blocks are aligned by them."""
    shapes = states.layer.aligned_states or states.layer.states
    return [
        math.prod(shape) * dtype_bytes(dtype)
        for shape, dtype in zip(shapes, states.state_dtypes, strict=True)
    ]


def _row_bytes(named: NamedLayer) -> int:
    """Bytes of a token in a layer of attention."""
    layer = named.layer
    elements = sum(layer.vectors) or layer.num_kv_heads * (layer.head_size + layer.size_of_values)
    return elements * dtype_bytes(named.dtype)


def _take_strides(layers: Sequence[NamedLayer]) -> bool:
    """Whether these are the layers of a hybrid model: plain attention beside states.

    As ``layers_with_strides`` of the adapter tells it by their specs.
    """
    attention = [named.layer for named in layers if not named.layer.states]
    plain = all(not layer.vectors and layer.compressed is None for layer in attention)
    return plain and 0 < len(attention) < len(layers)


def _page_of_states(layers: Sequence[NamedLayer]) -> int | None:
    """Bytes that pages of attention are padded to beside states that nothing was aligned by."""
    pages = [
        sum(
            math.prod(shape) * dtype_bytes(dtype)
            for shape, dtype in zip(named.layer.states, named.state_dtypes, strict=True)
        )
        for named in layers
        if named.layer.states
    ]
    # vllm-ascend 0.30.0rc2 takes the last layer's (``NPUModelRunner.get_kv_cache_spec``).
    return pages[-1] if pages else None
