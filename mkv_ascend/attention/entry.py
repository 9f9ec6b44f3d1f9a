# SPDX-License-Identifier: Apache-2.0
"""What an attention backend can serve, what a layer needs, and what the process offers."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass

from mkv_ascend.attention.arguments import SINKS, SLIDING_WINDOW
from mkv_ascend.layout.kind import Kind, Role, Word


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
    """Modules with which only results of layers with sinks depend on the batch; None: all may."""
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


PLAIN_DTYPES = frozenset({"float16", "bfloat16", "float32"})
"""Dtypes that hold plain values, without scales."""


@dataclass(frozen=True)
class LayerRequest:
    """What one layer needs of its backend.

    ``dtype``: of query, key and value. ``kv_cache_dtype``: of the cache; ``auto`` means ``dtype``.
    Numbers of heads count one rank. Head sizes are in elements (for MLA the latent and the rope key
    together).
    """

    name: str
    role: Role
    kind: Kind
    layer_class: str
    dtype: str
    head_size: int
    num_heads: int = 1
    num_kv_heads: int = 1
    head_size_v: int | None = None
    """None: not known, of a layer that is not made yet."""
    kv_cache_dtype: str = "auto"
    arguments: frozenset[str] = frozenset()
    """What it asks for of ``arguments.OPTIONAL``, by the names there."""
    non_causal: bool = False
    keeps_keys: bool = True
    """Whether later tokens attend to these; layers of encoders have no cache."""
    block_size: int | None = None
    """Tokens per block of the KV manager, if already known."""
    layer_backend: str | None = None
    """``module:Class`` of the backend that the layer's class names itself, if it does."""

    @property
    def has_sink(self) -> bool:
        """Whether it asks for attention sinks."""
        return SINKS in self.arguments

    @property
    def cast_dtype(self) -> str | None:
        """The dtype to which rows are cast for the cache; None if they are kept or quantised."""
        plain = {self.dtype, self.kv_cache_dtype} <= PLAIN_DTYPES
        return self.kv_cache_dtype if plain and self.kv_cache_dtype != self.dtype else None


def module_is_installed(name: str) -> bool:
    """Whether a module can be imported, without importing it."""
    return name in sys.modules or importlib.util.find_spec(name) is not None


@dataclass(frozen=True)
class Environment:
    """What a backend can rely on in this process."""

    device_generation: DeviceGeneration
    module_available: Callable[[str], bool] = module_is_installed
    batch_invariant: bool = False
    """VLLM_BATCH_INVARIANT."""
    acl_graphs: bool = False
    """Whether attention runs inside full ACL graphs; piecewise graphs leave it outside."""
    extra_dtypes: frozenset[str] = frozenset()
    """Dtypes accepted beyond the documented ones: float32 on an emulated NPU that allows it."""
