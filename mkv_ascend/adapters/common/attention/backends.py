# SPDX-License-Identifier: Apache-2.0
"""Makes the backend class of a layer from a catalog entry.

vllm-ascend's classes are used unchanged, except for these gaps:

* vLLM's ``MLAAttention`` takes an explicit backend only if it answers ``is_mla()``; none of
  vllm-ascend's does.
* A cache with another dtype than the model needs rows of its dtype (``cache_dtype``).
* The metadata builders of MLA take the block size of another group (``group_blocks``).
* The implementations of MLA and of flash_attention_3 need corrections (in their
  modules of ``common/backends``).
* Windows of a draft's rows that see those behind them need an implementation of the host's own
  adapter (``WINDOWS_OF_DRAFTS``).
* A draft's metadata builders must see the draft's configuration and rotary tables, whoever
  creates them (``bound_to``).

Each class is made once per process and backend, because vllm-ascend groups layers by the full name
of their backend class.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

from mkv_ascend.adapters.common.attention import (
    cache_dtype,
    group_blocks,
    replicated,
    rope_tables,
)
from mkv_ascend.adapters.common.attention.building import ModelBeingBuilt
from mkv_ascend.adapters.common.attention.derived import derive
from mkv_ascend.adapters.common.attention.records import BACKEND_PER_LAYER, OF_ONE_MODEL
from mkv_ascend.adapters.common.backends import flash_attention_3, mla
from mkv_ascend.attention.entry import BackendEntry
from mkv_ascend.layout.kind import Kind

ADAPTED_IMPLEMENTATIONS: dict[str, Callable[..., type[Any]]] = {
    "vllm_ascend.attention.mla_v1:AscendMLABackend": mla.implementation,
    "vllm_ascend.attention.fa3_v1:AscendFABackend": flash_attention_3.implementation,
}
"""Class path of a backend -> function that makes our implementation from vllm-ascend's."""

WINDOWS_OF_DRAFTS: dict[str, Callable[..., type[Any]]] = {}
"""Class path of a backend -> function that makes the implementation of a draft's layers with
windows from vllm-ascend's; a host may add one."""

MLA_KINDS = frozenset({Kind.MLA, Kind.SPARSE_MLA, Kind.COMPRESSED_MLA})


def backend_class(
    entry: BackendEntry,
    model: ModelBeingBuilt,
    *,
    casts_to_cache: bool = False,
    windows_ahead: bool = False,
) -> type[Any]:
    """The attention backend class for layers of ``model`` that the catalog entry serves.

    Args:
        casts_to_cache: whether the cache has another plain dtype than the model.
        windows_ahead: whether they are layers of a draft with a sliding window, whose rows may
            see those behind them.

    Raises:
        ImportError: the entry's class or a library it needs is not installed.
    """
    kinds = set(entry.kinds)
    adapted: Any = _adapted(
        entry.class_path, bool(MLA_KINDS & kinds), bool(builders_of_one_block_size & kinds)
    )
    if model.replicated:
        adapted = replicated.on_each_rank(adapted)
    if windows_ahead and entry.class_path in WINDOWS_OF_DRAFTS:
        adapted = _with_windows(adapted, entry.class_path)
    if casts_to_cache:
        adapted = _casting(adapted)
    return bound_to(adapted, model)


builders_of_one_block_size = {Kind.MLA}
"""Kinds whose metadata builders read the block size of the cache configuration; a host may add
others."""


@functools.cache
def _adapted(class_path: str, serves_mla: bool, one_block_size: bool) -> type[Any]:
    module_name, _, class_name = class_path.partition(":")
    backend: type[Any] = getattr(importlib.import_module(module_name), class_name)
    members: dict[str, Any] = {}
    if serves_mla and not backend.is_mla():
        members["is_mla"] = classmethod(lambda cls: True)
    # Called late, because vllm-ascend's classes depend on the parallel setting.
    if one_block_size:
        members["get_builder_cls"] = staticmethod(
            lambda: group_blocks.builder(backend.get_builder_cls())
        )
    adapt = ADAPTED_IMPLEMENTATIONS.get(class_path)
    if adapt is not None:
        members["get_impl_cls"] = staticmethod(lambda: adapt(backend.get_impl_cls()))
    return derive(backend, "", members, BACKEND_PER_LAYER) if members else backend


@functools.cache
def _with_windows(backend: Any, class_path: str) -> type[Any]:
    adapt = WINDOWS_OF_DRAFTS[class_path]
    members = {"get_impl_cls": staticmethod(lambda: adapt(backend.get_impl_cls()))}
    made = derive(backend, "[window]", members, BACKEND_PER_LAYER)
    _WITH_WINDOWS.add(made)
    return made


_WITH_WINDOWS: set[type[Any]] = set()
"""Classes that ``_with_windows`` has made."""


def has_windows_of_drafts(backend: type[Any]) -> bool:
    """Whether layers on this backend have their window where they see rows behind their own, too.

    Args:
        backend: of a layer with a window.
    """
    return not _WITH_WINDOWS.isdisjoint(backend.__mro__)


@functools.cache
def _casting(backend: Any) -> type[Any]:
    members = {
        "get_impl_cls": staticmethod(lambda: cache_dtype.implementation(backend.get_impl_cls()))
    }
    return derive(backend, "[cast]", members, BACKEND_PER_LAYER)


def bound_to(backend: type[Any], model: ModelBeingBuilt) -> type[Any]:
    """A subclass of ``backend`` whose metadata builders see ``model``'s own configuration.

    The target's backends are returned unchanged, because their builders are created with its
    configuration anyway. The name of the class differs from the target's, so that layers of
    two models never share a metadata builder.
    """
    if model.builder_config is None and model.rope_tables is None:
        return backend
    key = (backend, model)
    if key not in _BOUND:
        _BOUND[key] = _bound(backend, model)
    return _BOUND[key]


_BOUND: dict[tuple[type[Any], ModelBeingBuilt], type[Any]] = {}
"""One class per backend and model, because vllm-ascend separates groups of layers by class."""


def _bound(backend: Any, model: ModelBeingBuilt) -> type[Any]:
    own: Any = replicated.on_each_rank(backend) if model.replicated else backend

    def get_builder_cls() -> type[Any]:
        return _bound_builder(own.get_builder_cls(), model)

    label = f"[{model.role.value}]"
    return derive(own, label, {"get_builder_cls": staticmethod(get_builder_cls)}, OF_ONE_MODEL)


def _with_own_rope(metadata: Any) -> Any:
    """Metadata with its own rows of cosines and sines.

    vllm-ascend's MLA builder returns views of one buffer per process. Metadata of all passes is
    built before the first of them runs, so all would see the rows of the last pass.
    """
    decode = getattr(metadata, "decode", None)
    if decode is not None and hasattr(getattr(decode, "cos", None), "clone"):
        decode.cos, decode.sin = decode.cos.clone(), decode.sin.clone()
    return metadata


@functools.cache
def _bound_builder(builder: Any, model: ModelBeingBuilt) -> type[Any]:
    def initialise(
        self: Any, kv_cache_spec: Any, layer_names: Any, vllm_config: Any, device: Any
    ) -> None:
        config = vllm_config if model.builder_config is None else model.builder_config
        builder.__init__(self, kv_cache_spec, layer_names, config, device)

    def build(self: Any, *args: Any, **kwargs: Any) -> Any:
        if model.rope_tables is None:
            return builder.build(self, *args, **kwargs)
        with model.rope_tables.active():
            return _with_own_rope(builder.build(self, *args, **kwargs))

    members: dict[str, Any] = {"__init__": initialise}
    if _reads_rotary_tables(builder):
        members["build"] = build
    bound = derive(builder, f"[{model.role.value}]", members, OF_ONE_MODEL)
    if model.rope_tables is not None:
        rope_tables.BY_BUILDER[bound] = model.rope_tables
    return bound


def _reads_rotary_tables(builder: type[Any]) -> bool:
    """Whether metadata may hold rows of the process's tables: not that of plain attention."""
    from vllm_ascend.attention.attention_v1 import AscendAttentionMetadataBuilder

    return not issubclass(builder, AscendAttentionMetadataBuilder)
