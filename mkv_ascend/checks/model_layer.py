# SPDX-License-Identifier: Apache-2.0
"""One layer as a config.json tells it, and how it is said that none can be told."""

from __future__ import annotations

from dataclasses import dataclass

from mkv_ascend.checks.compressed_layers import CompressedCache
from mkv_ascend.layout.kind import Kind

__all__ = ["ExplainError", "ModelLayer", "NotFromNumbersError"]


class ExplainError(ValueError):
    """What cannot be explained; the message says what was asked and what is possible."""


class NotFromNumbersError(ExplainError):
    """What the numbers of a config.json do not tell; vLLM's class of the model may."""


@dataclass(frozen=True)
class ModelLayer:
    """One layer on one rank. ``head_size`` in elements (MLA: latent, rope and indexer together).

    ``value_size``: elements of a value, 0 where it has as many as a key.
    ``window``: tokens, 0 for all. ``vectors``: elements of an MLA layer's latent, rope and, with an
    indexer, its key. ``states``: shapes of the states. ``module``: name of the layer's cache inside
    its decoder layer, as vLLM's class of the model has it. ``aligned_states``: shapes by which
    vllm-ascend aligns blocks, where they are not those of the states. ``compressed``: the cache, in
    layers of DeepSeek-V4. ``depth``: number of its decoder layer, where those have several caches.
    ``is_indexer``: whether it keeps the keys of a sparse layer's indexer, and nothing attends.
    """

    kind: Kind
    num_heads: int = 1
    num_kv_heads: int = 1
    head_size: int = 0
    window: int = 0
    vectors: tuple[int, ...] = ()
    states: tuple[tuple[int, ...], ...] = ()
    has_sink: bool = False
    module: str = "self_attn.attn"
    aligned_states: tuple[tuple[int, ...], ...] = ()
    compressed: CompressedCache | None = None
    depth: int | None = None
    is_indexer: bool = False
    value_size: int = 0

    @property
    def size_of_values(self) -> int:
        """Elements of a value."""
        return self.value_size or self.head_size
