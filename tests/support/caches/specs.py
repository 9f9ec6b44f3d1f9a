# SPDX-License-Identifier: Apache-2.0
"""Specs with the class names, fields and page sizes of vLLM's and vllm-ascend's.

Written down so that unit tests need neither; tests/emulated/layout/test_layout_stock_faults.py
holds the recipes against the real classes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

ITEM_BYTES = {
    "bfloat16": 2,
    "float16": 2,
    "float32": 4,
    "int8": 1,
    "float8_e4m3fn": 1,
    "complex64": 8,
}


@dataclass(frozen=True)
class AttentionSpec:
    block_size: int
    num_kv_heads: int
    head_size: int
    dtype: str = "bfloat16"
    page_size_padded: int | None = None
    head_size_v: int | None = None

    @property
    def page_size_bytes(self) -> int:
        both = self.head_size + (self.head_size_v or self.head_size)
        used = self.block_size * self.num_kv_heads * both * ITEM_BYTES[self.dtype]
        return self.page_size_padded or used


@dataclass(frozen=True)
class FullAttentionSpec(AttentionSpec):
    sliding_window: int | None = None


@dataclass(frozen=True)
class SlidingWindowSpec(AttentionSpec):
    sliding_window: int = 1024


class ChunkedLocalAttentionSpec(AttentionSpec):
    pass


class CrossAttentionSpec(AttentionSpec):
    pass


class EncoderOnlyAttentionSpec(AttentionSpec):
    pass


class SinkFullAttentionSpec(FullAttentionSpec):
    pass


@dataclass(frozen=True)
class MLAAttentionSpec(FullAttentionSpec):
    cache_dtype_str: str | None = None
    compress_ratio: int = 1
    model_version: str | None = None

    @property
    def storage_block_size(self) -> int:
        return self.block_size // self.compress_ratio

    @property
    def page_size_bytes(self) -> int:
        row = self.num_kv_heads * self.head_size * ITEM_BYTES[self.dtype]
        return self.page_size_padded or self.storage_block_size * row


class HiddenStateCacheSpec(MLAAttentionSpec):
    pass


@dataclass(frozen=True)
class AscendMLAAttentionSpec(MLAAttentionSpec):
    """``page``: what the real class computes, written down for each form."""

    scale_dim: int = 0
    scale_dtype: str = "int8"
    sparse_head_dim: tuple[int, ...] | None = None
    cache_sparse_sfa_c8: bool = False
    cache_sparse_li_c8: bool = False
    c8_k_cache_dtype: str = "int8"
    c8_k_scale_cache_dtype: str = "float16"
    sfa_dcp_replicated_indexer_size: int = 1
    page: int | None = None

    @property
    def page_size_bytes(self) -> int:
        row = (
            self.head_size * ITEM_BYTES[self.dtype] + self.scale_dim * ITEM_BYTES[self.scale_dtype]
        )
        return self.page or self.block_size * self.num_kv_heads * row


@dataclass(frozen=True)
class AscendMLAAttentionSpecOf030(AscendMLAAttentionSpec):
    """vllm-ascend 0.30 counts the tokens of a block, not its rows."""

    tokens_per_state: int = 1

    @property
    def page_size_bytes(self) -> int:
        row = (
            self.head_size * ITEM_BYTES[self.dtype] + self.scale_dim * ITEM_BYTES[self.scale_dtype]
        )
        return self.block_size // self.tokens_per_state * self.num_kv_heads * row


@dataclass(frozen=True)
class AscendSFAIndexerCacheSpec(MLAAttentionSpec):
    scale_dim: int = 0
    scale_dtype: str = "int8"
    sfa_dcp_replicated_indexer_size: int = 1

    @property
    def page_size_bytes(self) -> int:
        row = (
            self.head_size * ITEM_BYTES[self.dtype] + self.scale_dim * ITEM_BYTES[self.scale_dtype]
        )
        return self.sfa_dcp_replicated_indexer_size * self.block_size * self.num_kv_heads * row


@dataclass(frozen=True)
class SlidingWindowMLASpec(SlidingWindowSpec):
    cache_dtype_str: str | None = None
    compress_ratio: int = 1
    model_version: str | None = None

    @property
    def storage_block_size(self) -> int:
        return self.block_size // self.compress_ratio

    @property
    def page_size_bytes(self) -> int:
        row = self.num_kv_heads * self.head_size * ITEM_BYTES[self.dtype]
        return self.page_size_padded or self.storage_block_size * row


class AscendSlidingWindowMLASpec(SlidingWindowMLASpec):
    @property
    def storage_block_size(self) -> int:
        return self.block_size


@dataclass(frozen=True)
class MambaSpec:
    block_size: int
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    page_size_padded: int | None = None

    @property
    def page_size_bytes(self) -> int:
        pairs = zip(self.shapes, self.dtypes, strict=True)
        used = sum(math.prod(shape) * ITEM_BYTES[dtype] for shape, dtype in pairs)
        return self.page_size_padded or used
