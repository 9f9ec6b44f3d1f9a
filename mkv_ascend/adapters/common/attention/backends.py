# SPDX-License-Identifier: Apache-2.0
"""Makes the backend class of a layer from a catalog entry.

vllm-ascend's classes are used unchanged, except for these gaps:

* vLLM's ``MLAAttention`` takes an explicit backend only if it answers ``is_mla()``; none of
  vllm-ascend's does.
* A cache with another dtype than the model needs rows of its dtype (``casting_implementation``).
* The metadata builders of MLA take the block size of another group (``builder_of_group_blocks``).
* The implementations of MLA and of flash_attention_3 need corrections (in their modules of
  ``common/backends``).
* Windows of a draft's rows that see those behind them need an implementation of the host's own
  adapter (``WINDOWS_OF_DRAFTS``).
* A draft's metadata builders must see the draft's configuration and rotary tables, whoever
  creates them (``bound_to``).

Each class is made once per process and backend, because vllm-ascend groups layers by the full name
of their backend class.
"""

from __future__ import annotations

import copy
import functools
import importlib
from collections.abc import Callable
from typing import Any

import torch
from vllm_ascend.attention.attention_v1 import (
    AscendAttentionBackend,
    AscendAttentionBackendImpl,
    AscendAttentionMetadataBuilder,
)

from mkv_ascend.adapters.common.attention import rope_tables
from mkv_ascend.adapters.common.attention.building import ModelBeingBuilt
from mkv_ascend.adapters.common.attention.derived import derive
from mkv_ascend.adapters.common.attention.records import (
    BACKEND_PER_LAYER,
    IN_DTYPE_OF_CACHE,
    OF_ONE_MODEL,
)
from mkv_ascend.adapters.common.backends import flash_attention_3, mla
from mkv_ascend.adapters.common.kv_cache.replicated_specs import spec_of_all_keys
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
        adapted = on_each_rank(adapted)
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
            lambda: builder_of_group_blocks(backend.get_builder_cls())
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
    members = {"get_impl_cls": staticmethod(lambda: casting_implementation(backend.get_impl_cls()))}
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
    own: Any = on_each_rank(backend) if model.replicated else backend

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


@functools.cache
def casting_implementation(base: type[Any]) -> type[Any]:
    """The implementation ``base`` with queries, keys and values cast to the cache's dtype.

    The operators take queries, keys and values of one dtype (npu_fused_infer_attention_score,
    flash_attn_with_kvcache). The operator that writes the cache takes one dtype for rows and cache.
    vllm-ascend 0.23.0 passes them rows in the model's dtype, so a float16 cache of a bfloat16 model
    is refused.
    """

    def forward(
        self: Any,
        layer: Any,
        query: torch.Tensor,
        key: torch.Tensor | None,
        value: torch.Tensor | None,
        kv_cache: Any,
        attn_metadata: Any,
        output: torch.Tensor | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> torch.Tensor:
        if attn_metadata is None or output is None:
            result: torch.Tensor = base.forward(
                self, layer, query, key, value, kv_cache, attn_metadata, output, *args, **kwargs
            )
            return result
        dtype = kv_cache[0].dtype
        inside = torch.empty_like(output, dtype=dtype)
        base.forward(
            self,
            layer,
            query.to(dtype),
            None if key is None else key.to(dtype),
            None if value is None else value.to(dtype),
            kv_cache,
            attn_metadata,
            inside,
            *args,
            **kwargs,
        )
        return output.copy_(inside)

    return derive(base, "[cast]", {"forward": forward}, IN_DTYPE_OF_CACHE)


@functools.cache
def builder_of_group_blocks(base: type[Any]) -> type[Any]:
    """A subclass of MLA's metadata builder ``base`` that sees its group's block size.

    vllm-ascend 0.23.0 takes it from the cache configuration, which has one block size for all
    groups. So chunks of a cached context are cut, and workspaces reserved, by the blocks of another
    group.
    """

    def initialise(
        self: Any, kv_cache_spec: Any, layer_names: Any, vllm_config: Any, *args: Any, **kwargs: Any
    ) -> None:
        config = _with_block_size(vllm_config, kv_cache_spec.block_size)
        base.__init__(self, kv_cache_spec, layer_names, config, *args, **kwargs)

    return derive(base, "", {"__init__": initialise}, OF_ONE_MODEL)


def _with_block_size(config: Any, block_size: int) -> Any:
    """A copy of ``config`` with blocks of ``block_size`` tokens."""
    if config.cache_config.block_size == block_size:
        return config
    view, cache = copy.copy(config), copy.copy(config.cache_config)
    cache.block_size = block_size
    view.cache_config = cache
    return view


_MADE: set[type[Any]] = set()
"""Classes that ``on_each_rank`` has made."""


@functools.cache
def on_each_rank(backend: Any) -> Any:
    """A subclass of ``backend`` whose classes know of no ranks that share keys.

    Under decode context parallelism vllm-ascend's attention knows neither windows nor rows that see
    those behind them. A draft's layers can do without it: ranks have its key heads in common, so
    that each rank attends to all keys by itself. Their caches: ``kv_cache/replicated_specs.py``.

    vllm-ascend chooses them once for the process. A subclass of such a class is given back.

    Raises:
        NotImplementedError: such classes are not known of this backend.
    """
    if not _MADE.isdisjoint(backend.__mro__):
        return backend
    if backend is not AscendAttentionBackend:
        raise NotImplementedError(
            f"a draft's layers on {backend.__name__} are asked to keep all keys on each rank, "
            "where ranks share those of the target (decode_context_parallel_size). Possible: "
            "layers on fused_infer_attention. Leave decode_context_parallel_size out, or choose "
            "such a draft"
        )
    members = {
        "get_impl_cls": staticmethod(lambda: AscendAttentionBackendImpl),
        "get_builder_cls": staticmethod(lambda: AscendAttentionMetadataBuilder),
    }
    made = derive(backend, "[each rank]", members, BACKEND_PER_LAYER, OF_ONE_MODEL)
    _MADE.add(made)
    return made


def keep_all_keys(layer: Any, ranks: int) -> None:
    """Let the layer ask for a cache of all keys of a sequence on each of ``ranks`` ranks."""
    layer.get_kv_cache_spec = functools.partial(spec_of_all_keys, layer, ranks)
