# SPDX-License-Identifier: Apache-2.0
"""Specs of layers without vLLM: named and computed as vLLM's, so that our recipes find them.

The numbers of a page are those of ``vllm/v1/kv_cache_interface.py``. ``explain_stock`` makes the
real specs of the same fields.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from mkv_ascend.layout.component import dtype_bytes

__all__ = [
    "AscendMLAAttentionSpec",
    "FullAttentionSpec",
    "MLAAttentionSpec",
    "MambaSpec",
    "SlidingWindowSpec",
    "Spec",
    "spec_to_plain",
]


@dataclass(frozen=True)
class _KeysAndValues:
    """``page_size_padded``: bytes that vllm-ascend pads the page to; None where it does not."""

    block_size: int
    num_kv_heads: int
    head_size: int
    dtype: str
    page_size_padded: int | None = None

    @property
    def used_bytes(self) -> int:
        """Bytes of keys and values of one block."""
        return 2 * self.block_size * self.num_kv_heads * self.head_size * dtype_bytes(self.dtype)

    @property
    def page_size_bytes(self) -> int:
        """Bytes of one block with what it is padded to."""
        return max(self.used_bytes, self.page_size_padded or 0)


@dataclass(frozen=True)
class FullAttentionSpec(_KeysAndValues):
    """Keys and values of every token."""


@dataclass(frozen=True)
class SlidingWindowSpec(_KeysAndValues):
    """Keys and values of the last ``sliding_window`` tokens."""

    sliding_window: int = 0


@dataclass(frozen=True)
class MLAAttentionSpec(_KeysAndValues):
    """Base by whose name the recipe of latent vectors is found."""


@dataclass(frozen=True)
class AscendMLAAttentionSpec(MLAAttentionSpec):
    """A latent vector and a rope key, and an indexer's key where ``sparse_head_dim`` is given.

    Not quantised: the last three fields are vllm-ascend's for caches that are.
    """

    sparse_head_dim: tuple[int, int, int] | None = None
    cache_sparse_sfa_c8: bool = False
    cache_sparse_li_c8: bool = False
    sfa_dcp_replicated_indexer_size: int = 1

    @property
    def used_bytes(self) -> int:
        """Bytes of one block; ``head_size`` is the sum of all vectors of a token."""
        return self.block_size * self.num_kv_heads * self.head_size * dtype_bytes(self.dtype)


@dataclass(frozen=True)
class MambaSpec:
    """States of fixed shape; ``num_speculative_blocks`` more of them while drafting."""

    block_size: int
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    page_size_padded: int | None = None
    num_speculative_blocks: int = 0

    @property
    def state_bytes(self) -> tuple[int, ...]:
        """Bytes of each state."""
        pairs = zip(self.shapes, self.dtypes, strict=True)
        return tuple(math.prod(shape) * dtype_bytes(dtype) for shape, dtype in pairs)

    @property
    def page_size_bytes(self) -> int:
        """Bytes of all states with what they are padded to."""
        return max(sum(self.state_bytes), self.page_size_padded or 0)


Spec = FullAttentionSpec | SlidingWindowSpec | AscendMLAAttentionSpec | MambaSpec


def spec_to_plain(spec: Spec) -> dict[str, Any]:
    """Class and fields, for JSON."""
    return {"class": type(spec).__name__, "fields": dataclasses.asdict(spec)}
