# SPDX-License-Identifier: Apache-2.0
"""One layer as a config.json tells it, and how it is said that none can be told."""

from __future__ import annotations

from dataclasses import dataclass

from mkv_ascend.checks.compressed_layers import CompressedCache
from mkv_ascend.layout.kind import Kind, Role

__all__ = ["ExplainError", "ModelLayer", "NamedLayer", "NotFromNumbersError"]


class ExplainError(ValueError):
    """What cannot be explained; the message says what was asked and what is possible."""


class NotFromNumbersError(ExplainError):
    """What the numbers of a config.json do not tell; vLLM's class of the model may.

    ``kept_block``: as of ``ServeFacts``, where it is known.
    """

    def __init__(self, message: str, kept_block: int | None = None) -> None:
        super().__init__(message)
        self.kept_block = kept_block


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


@dataclass(frozen=True)
class NamedLayer:
    """A layer with its name, the model it is of, and the dtype of its cache.

    ``state_dtype``: of a recurrent state, where it is not that of the cache. ``cached_as``: dtype
    of keys and values, where they are not kept as they are.
    """

    name: str
    role: Role
    dtype: str
    layer: ModelLayer
    state_dtype: str | None = None
    cached_as: str | None = None

    @property
    def state_dtypes(self) -> tuple[str, ...]:
        """Of each of its states: a convolution's window, and behind it the recurrent one."""
        recurrent = self.state_dtype or self.dtype
        return (self.dtype, *(recurrent for _ in self.layer.states[1:]))
