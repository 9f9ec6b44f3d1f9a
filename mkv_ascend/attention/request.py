# SPDX-License-Identifier: Apache-2.0
"""The inputs of selection: what a layer needs, and what the process offers."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass

from mkv_ascend.attention.arguments import SINKS
from mkv_ascend.attention.entry import DeviceGeneration
from mkv_ascend.layout.kind import Kind, Role

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
