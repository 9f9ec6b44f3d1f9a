# SPDX-License-Identifier: Apache-2.0
"""From a catalog entry to the class that a layer is given.

vllm-ascend's classes are used as they are, but for three things they lack:

* vLLM's ``MLAAttention`` takes an explicit backend only if it answers ``is_mla()``; none of
  vllm-ascend's does.
* The flash_attention_3 implementation splits a batch into decodes and prefills and hands the
  operator block tables and lengths of the wrong rows as soon as a decode has more than one
  token, as in every verify step of speculation (see ``_whole_batch_implementation``).
* A draft's metadata builders must see the draft's configuration and rotary tables, whoever
  creates them (``bound_to``).

The classes are made once per process and backend, because vllm-ascend groups layers by the full
name of their backend class.
"""

from __future__ import annotations

import functools
import importlib
import types
from typing import Any

import torch

from mkv_ascend.attention.building import ModelBeingBuilt
from mkv_ascend.attention.catalog import BackendEntry
from mkv_ascend.layout.kind import Kind

MLA_KINDS = frozenset({Kind.MLA, Kind.SPARSE_MLA, Kind.COMPRESSED_MLA})


def backend_class(entry: BackendEntry, model: ModelBeingBuilt) -> type[Any]:
    """The attention backend class for layers of ``model`` that the catalog entry serves.

    Raises:
        ImportError: the entry's class or a library it needs is not installed.
    """
    adapted = _adapted(entry.class_path, bool(MLA_KINDS & set(entry.kinds)))
    return bound_to(adapted, model)


@functools.cache
def _adapted(class_path: str, serves_mla: bool) -> type[Any]:
    module_name, _, class_name = class_path.partition(":")
    backend: type[Any] = getattr(importlib.import_module(module_name), class_name)
    if serves_mla and not backend.is_mla():
        return _derive(backend, "", {"is_mla": classmethod(lambda cls: True)})
    if module_name == "vllm_ascend.attention.fa3_v1":
        implementation = _whole_batch_implementation(backend.get_impl_cls())
        return _derive(backend, "", {"get_impl_cls": staticmethod(lambda: implementation)})
    return backend


def bound_to(backend: type[Any], model: ModelBeingBuilt) -> type[Any]:
    """A subclass of ``backend`` whose metadata builders see ``model``'s own configuration.

    The target's backends are returned unchanged: their builders are created with its
    configuration already. The name of the class differs from the target's, so that layers of
    two models never share a metadata builder.
    """
    if model.builder_config is None and model.rope_tables is None:
        return backend
    key = (backend, model)
    if key not in _BOUND:
        _BOUND[key] = _bound(backend, model)
    return _BOUND[key]


_BOUND: dict[tuple[type[Any], ModelBeingBuilt], type[Any]] = {}
"""One class per backend and model: vllm-ascend tells groups of layers apart by their class."""


def _bound(backend: type[Any], model: ModelBeingBuilt) -> type[Any]:
    @functools.cache
    def get_builder_cls() -> type[Any]:
        return _bound_builder(backend.get_builder_cls(), model)

    label = f"[{model.role.value}]"
    return _derive(backend, label, {"get_builder_cls": staticmethod(get_builder_cls)})


def _bound_builder(builder: type[Any], model: ModelBeingBuilt) -> type[Any]:
    def initialise(
        self: Any, kv_cache_spec: Any, layer_names: Any, vllm_config: Any, device: Any
    ) -> None:
        config = vllm_config if model.builder_config is None else model.builder_config
        builder.__init__(self, kv_cache_spec, layer_names, config, device)

    def build(self: Any, *args: Any, **kwargs: Any) -> Any:
        if model.rope_tables is None:
            return builder.build(self, *args, **kwargs)
        with model.rope_tables.active():
            return builder.build(self, *args, **kwargs)

    return _derive(builder, f"[{model.role.value}]", {"__init__": initialise, "build": build})


def _derive(base: type[Any], label: str, members: dict[str, Any]) -> type[Any]:
    name = f"Mkv{base.__name__}{label}"
    namespace = {**members, "__module__": __name__, "__qualname__": name}
    return types.new_class(name, (base,), exec_body=lambda body: body.update(namespace))


def _whole_batch_implementation(implementation: type[Any]) -> type[Any]:
    """An implementation that hands the whole batch to the operator in one call.

    vllm-ascend 0.23.0 calls ``flash_attn_with_kvcache`` once for decodes, without a causal mask,
    and once for prefills, with block tables cut at the number of decode *tokens* and query
    offsets that do not start at 0. All of it is right only while every decode has one token.
    The operator takes mixed batches as they are: queries by ``cu_seqlens_q``, keys by
    ``page_table`` and ``cache_seqlens``, the causal mask aligned to the last key of each
    request (flash-attention 3, ``flash_attn_with_kvcache``).
    """

    def forward_impl(
        self: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: Any,
        attn_metadata: Any,
        output: torch.Tensor,
    ) -> torch.Tensor:
        requests = len(attn_metadata.actual_seq_lengths_q)
        tokens = attn_metadata.actual_seq_lengths_q[-1]
        result = self._flash_attn_with_kvcache(
            query[:tokens],
            attn_metadata.block_tables[:requests],
            attn_metadata.query_start_loc[: requests + 1],
            attn_metadata.seq_lens[:requests].to(query.device),
            attn_metadata.causal,
            attn_metadata.max_query_len,
        )
        output[:tokens] = result
        return output

    return _derive(implementation, "", {"forward_impl": forward_impl})
