# SPDX-License-Identifier: Apache-2.0
"""Facts about a layer that planning needs beside its spec; the worker gathers them.

The engine core has specs by name, but no layers. So the worker ties the facts to each spec, as an
attribute that is not a field. The attribute survives pickling and copying, and changes neither
equality nor hashes. ``dataclasses.replace`` loses it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from vllm.model_executor.layers.attention import MLAAttention
from vllm.v1.kv_cache_interface import HiddenStateCacheSpec, MambaSpec
from vllm.v1.worker.utils import select_common_block_size
from vllm_ascend.utils import AscendDeviceType, get_ascend_device_type

from mkv_ascend.adapters.common.kv_cache.replicated_specs import ranks_of_layer
from mkv_ascend.layout.kind import Role
from mkv_ascend.layout.recipes import LayerFacts, dtype_name

_ATTRIBUTE = "mkv_ascend_facts"
_FIRST_FORM = "mkv_ascend_first_form"

WITHOUT_KERNEL_BLOCKS = (MambaSpec, HiddenStateCacheSpec)
"""Specs of caches that are never split into kernel blocks."""


def facts_of_layer(
    name: str,
    layer: Any,
    draft_layers: Collection[str],
    kernel_block: int | None = None,
    *,
    takes_strides: bool = False,
) -> LayerFacts:
    """The facts of a layer of this worker.

    Args:
        kernel_block: rows per block of its backend, or of its group's block table.
        takes_strides: whether its operators take any stride between blocks.
    """
    is_mla = isinstance(layer, MLAAttention)
    key_dtype, value_dtype = _quantised_dtypes(layer)
    ranks = ranks_of_layer(layer)
    return LayerFacts(
        layer=name,
        role=Role.DRAFT if name in draft_layers else Role.TARGET,
        kernel_block=None if kernel_block is None else kernel_block * ranks,
        takes_strides=takes_strides,
        latent_dim=layer.kv_lora_rank if is_mla else None,
        rope_dim=layer.qk_rope_head_dim if is_mla else None,
        key_dtype=key_dtype,
        value_dtype=value_dtype,
        # vllm-ascend's runner decides it the same way.
        full_indexer_view=get_ascend_device_type() is AscendDeviceType.A5,
        ranks=ranks,
    )


def _quantised_dtypes(layer: Any) -> tuple[str | None, str | None]:
    """Key and value dtypes of an MLA layer with a quantised latent (fa_quant), else None.

    Its rope keeps the model's dtype. Other layers have one dtype, which is in their spec.
    """
    implementation: Any = getattr(layer, "impl", None)
    if not getattr(implementation, "fa_quant_layer", False):
        return None, None
    kept = implementation.vllm_config.model_config.dtype
    return dtype_name(implementation.dtype), dtype_name(kept)


def tie_facts(
    specs: Mapping[str, Any],
    layers: Mapping[str, Any],
    draft_layers: Collection[str],
) -> None:
    """Give each spec the facts of its layer."""
    for name, spec in specs.items():
        layer = layers[name]
        block = _kernel_block(spec, layer)
        tie(spec, facts_of_layer(name, layer, draft_layers, block))


def _kernel_block(spec: Any, layer: Any) -> int | None:
    """Rows of a kernel block of this layer; None if blocks are never split."""
    if isinstance(spec, WITHOUT_KERNEL_BLOCKS):
        return None
    return int(select_common_block_size(spec.block_size, [layer.get_attn_backend()]))


def with_block_size(spec: Any, block_size: int) -> Any:
    """``spec`` with another block size; the copy keeps its facts and its first form."""
    if spec.block_size == block_size:
        return spec
    changed = spec.copy_with_new_block_size(block_size)
    tie(changed, tied_facts(spec))
    object.__setattr__(changed, _FIRST_FORM, first_form(spec))
    return changed


def first_form(spec: Any) -> Any:
    """The spec as its layer gave it, with the layer's own block size."""
    return getattr(spec, _FIRST_FORM, spec)


def tie(spec: Any, facts: LayerFacts | None) -> None:
    """Tie facts to one spec. Specs are frozen, but this attribute is not a field."""
    object.__setattr__(spec, _ATTRIBUTE, facts)


def tied_facts(spec: Any) -> LayerFacts | None:
    """The facts that the worker tied to this spec; None for other specs."""
    facts = getattr(spec, _ATTRIBUTE, None)
    assert facts is None or isinstance(facts, LayerFacts)
    return facts
