# SPDX-License-Identifier: Apache-2.0
"""The form of one catalog entry: what an attention backend can serve."""

from __future__ import annotations

from dataclasses import dataclass

from mkv_ascend.attention.arguments import SINKS, SLIDING_WINDOW
from mkv_ascend.layout.kind import Kind, Word


class DeviceGeneration(Word):
    """Generations of Ascend NPUs, as vllm-ascend tells them apart."""

    A2 = "A2"
    A3 = "A3"
    A5 = "A5"
    ATLAS_310P = "310P"


class GraphSupport(Word):
    """Which batches a backend can run inside a full ACL graph."""

    ALWAYS = "always"
    UNIFORM_BATCH = "uniform batches"
    SINGLE_TOKEN_DECODE = "decode of one token"
    NEVER = "never"


@dataclass(frozen=True)
class HeadSizes:
    """The head sizes that a backend's operators take, in elements.

    Either ``exactly`` the given ones, or every multiple of ``multiple_of`` up to ``maximum``.
    """

    exactly: tuple[int, ...] = ()
    multiple_of: int = 1
    maximum: int | None = None

    def holds(self, head_size: int) -> bool:
        """Whether a head of this size can be served."""
        if self.exactly:
            return head_size in self.exactly
        fits = self.maximum is None or head_size <= self.maximum
        return fits and head_size % self.multiple_of == 0

    def __str__(self) -> str:
        if self.exactly:
            return ", ".join(str(size) for size in self.exactly)
        if self.maximum is None:
            return "any" if self.multiple_of == 1 else f"multiples of {self.multiple_of}"
        multiples = "" if self.multiple_of == 1 else f"multiples of {self.multiple_of} "
        return f"{multiples}up to {self.maximum}"


@dataclass(frozen=True)
class OperatorLimits:
    """What an operator takes of query, key and value, and what it computes."""

    dtypes: frozenset[str]
    head_sizes: HeadSizes
    computes: frozenset[str] = frozenset()


@dataclass(frozen=True)
class BackendEntry:
    """One backend: its names, its class, and what it can serve."""

    name: str
    """Our public name, used in options, messages and tables."""
    class_path: str
    """``module:Class`` of the backend as vllm-ascend (or vLLM) ships it."""
    kinds: frozenset[Kind]
    model_dtypes: frozenset[str]
    """Dtypes of query, key and value: ``"bfloat16"`` and so on."""
    kv_cache_dtypes: frozenset[str]
    """Dtypes of the cache once ``auto`` is resolved."""
    head_sizes: HeadSizes
    generations: frozenset[DeviceGeneration]
    rank: int
    """The lowest rank among those that fit is the default of a layer."""
    aliases: frozenset[str] = frozenset()
    """Other names that find this entry, compared without case; unique over the catalog."""
    vllm_names: frozenset[str] = frozenset()
    """Values of vLLM's own --attention-backend that mean this backend; they are aliases too."""
    computes: frozenset[str] = frozenset()
    """What it computes of ``arguments.OPTIONAL``; a window where it serves that kind anyway."""
    implementations_without: tuple[tuple[str, frozenset[str]], ...] = ()
    """Implementations that vllm-ascend takes by its own options, and what they do not compute."""
    non_causal: bool = False
    """Whether attention in both directions is served."""
    other_value_sizes: tuple[tuple[int, int], ...] = ()
    """Head sizes whose values have another size, with that size; else it is that of keys."""
    casts_to_cache: bool = False
    """Whether the cache may have another plain dtype than the model: our implementation casts."""
    max_queries_per_kv_head: int | None = None
    """Most query heads that may share one key head; None: no documented limit."""
    graphs: GraphSupport = GraphSupport.NEVER
    batch_invariant_modules: frozenset[str] | None = None
    """Modules with which its results do not depend on the batch; None: they always may."""
    batch_invariant_sinks: bool = False
    """Whether that still holds for layers with sinks."""
    required_modules: frozenset[str] = frozenset()
    """Modules that must be importable on top of vllm-ascend."""
    kernel_block_sizes: tuple[int, ...] = (128,)
    """Tokens per kernel block; the first is preferred."""
    without_cache: OperatorLimits | None = None
    """Limits of layers that keep no keys, where another operator serves these; else the same."""
    takes_strides: bool = False
    """Whether cache components may be strided views; False: each must be contiguous."""
    chosen_by_layer: bool = False
    """Whether the layer's own class names this backend, so that options cannot choose it."""
    notes: tuple[str, ...] = ()
    """Limits that the fields above do not express, for the documentation."""

    @property
    def sinks(self) -> bool:
        """Whether attention sinks are computed."""
        return SINKS in self.computes

    def computed(self, keeps_keys: bool) -> frozenset[str]:
        """What it computes of ``arguments.OPTIONAL`` in layers that keep keys, or in others."""
        if not keeps_keys and self.without_cache is not None:
            return self.without_cache.computes
        windows = {SLIDING_WINDOW} if Kind.SLIDING_WINDOW in self.kinds else set()
        return self.computes | windows
