# SPDX-License-Identifier: Apache-2.0
"""The draft's layers, sorted into groups when the engine starts.

vLLM 0.23.0 and vllm-ascend 0.23.0 assume that all of a draft's layers lie in one KV group. Here
they may lie in any number of KV groups, and several attention groups (backend, spec, heads, what
they see of a block) may share one.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vllm.v1.attention.backends.registry import MambaAttentionBackendEnum
from vllm.v1.kv_cache_interface import MambaSpec, UniformTypeKVCacheSpecs

from mkv_ascend.adapters.common.backends.gdn import GatedDeltaNet
from mkv_ascend.adapters.common.backends.recurrent import (
    Mamba2,
    RecurrentBackend,
    ShortConvolution,
)
from mkv_ascend.adapters.common.drafting.kinds_of_drafts import keeps_all_indexer_keys
from mkv_ascend.adapters.common.kv_cache.replicated_specs import ranks_of_layer
from mkv_ascend.drafting.draft import DraftGroup, DraftGroups
from mkv_ascend.drafting.recurrent_groups import RecurrentCaches, RecurrentGroup

if TYPE_CHECKING:
    from vllm.config import VllmConfig

    from mkv_ascend.adapters.common.backends.port import CommonMetadata


def ranks_of_slots(config: VllmConfig, layers: Mapping[str, Any]) -> int:
    """How many ranks' blocks of one id the slots of a draft's plan count as one block.

    Where ranks share all that the draft caches, ``ContextShares`` knows it.
    """
    if keeps_all_indexer_keys(config):
        return int(config.parallel_config.decode_context_parallel_size)
    return max(ranks_of_layer(layer) for layer in layers.values())


def find_groups(
    layers: Mapping[str, Any],
    kv_cache_groups: Sequence[Any],
    kernel_block_sizes: Sequence[int],
    causal: Collection[str] = (),
) -> DraftGroups:
    """Sort the draft's layers into groups.

    Args:
        layers: attention layers of the draft by name, in the order in which it runs them.
        kv_cache_groups: vLLM's ``KVCacheGroupSpec`` of the engine.
        kernel_block_sizes: tokens in a block of each KV group's block table.
        causal: names of layers that see no later row of a block of mask tokens.

    Raises:
        ValueError: a layer lies in no KV group.
    """
    members: dict[Any, list[str]] = {}
    kv_groups: list[int] = []
    for name, layer in layers.items():
        kv_group = kv_group_of(name, kv_cache_groups)
        if kv_group not in kv_groups:
            kv_groups.append(kv_group)
        spec = spec_of(name, kv_cache_groups[kv_group].kv_cache_spec)
        spec = spec.copy_with_new_block_size(kernel_block_sizes[kv_group])
        heads = getattr(layer, "num_heads", None)
        key = (kv_group, layer.get_attn_backend(), spec, heads, name in causal)
        members.setdefault(key, []).append(name)
    return DraftGroups(
        groups=tuple(
            DraftGroup(group, kv_groups.index(group), backend, spec, heads, tuple(names), in_order)
            for (group, backend, spec, heads, in_order), names in members.items()
        ),
        kv_groups=tuple(kv_groups),
        block_sizes=tuple(kernel_block_sizes[kv_group] for kv_group in kv_groups),
    )


def kv_group_of(layer: str, kv_cache_groups: Sequence[Any]) -> int:
    """The KV group that holds the layer; ValueError if none does."""
    for index, group in enumerate(kv_cache_groups):
        if layer in group.layer_names:
            return index
    raise ValueError(
        f"the draft's layer {layer} lies in none of the engine's {len(kv_cache_groups)} KV groups; "
        "a draft is served from layers that have a KV cache"
    )


def spec_of(layer: str, group_spec: Any) -> Any:
    """The spec of one layer of a KV group with ``group_spec``."""
    if isinstance(group_spec, UniformTypeKVCacheSpecs):
        return group_spec.kv_cache_specs[layer]
    return group_spec


def refuse_recurrent_layers(specs: Mapping[str, Any]) -> None:
    """Refuse drafts whose state cannot return to the last accepted token.

    Args:
        specs: the KV cache spec of each of the draft's layers.

    Raises:
        NotImplementedError: a layer keeps a recurrent state (Mamba, GDN, short convolution).
    """
    recurrent = [name for name, spec in specs.items() if isinstance(spec, MambaSpec)]
    if recurrent:
        raise NotImplementedError(
            f"the draft keeps a recurrent state in {len(recurrent)} of its {len(specs)} layers "
            f"(first: {recurrent[0]}). It would have to be taken back where tokens are rejected, "
            "which this release does for drafts of method draft_model only. Choose a draft of "
            "attention layers only, or a model of its own."
        )


RECURRENT_BACKENDS: dict[MambaAttentionBackendEnum, type[RecurrentBackend]] = {
    MambaAttentionBackendEnum.GDN_ATTN: GatedDeltaNet,
    MambaAttentionBackendEnum.MAMBA2: Mamba2,
    MambaAttentionBackendEnum.SHORT_CONV: ShortConvolution,
}
"""vLLM's kinds of recurrent layers that a draft may have."""


def refuse_unknown_kinds(layers: Mapping[str, Any], speculative: int) -> None:
    """Refuse recurrent layers whose state cannot return to the last accepted token.

    Args:
        layers: the draft's recurrent layers by name.
        speculative: draft tokens of one proposal.

    Raises:
        NotImplementedError: a layer is of another kind than ``RECURRENT_BACKENDS``, or a form of it
            that is not served.
    """
    for name, layer in layers.items():
        kind = RECURRENT_BACKENDS.get(layer.mamba_type)
        known = ", ".join(kind.name for kind in RECURRENT_BACKENDS)
        reason = (
            f"its kind is {layer.mamba_type}, and this release knows {known}"
            if kind is None
            else kind.why_not(layer, speculative)
        )
        if reason is not None:
            raise NotImplementedError(
                f"the draft keeps a recurrent state in {name}, which cannot be taken back where "
                f"tokens are rejected: {reason}. Choose a draft of other layers, such as attention."
            )


def find_recurrent_groups(
    layers: Mapping[str, Any],
    kv_cache_groups: Sequence[Any],
    config: Any,
    device: Any,
    common: CommonMetadata,
) -> tuple[RecurrentGroup, ...]:
    """Sort recurrent layers into groups and make their builders.

    Args:
        layers: the draft's recurrent layers by name.
        kv_cache_groups: vLLM's ``KVCacheGroupSpec`` of the engine.
        config: the draft's configuration, which the builders get.
        common: makes what builders take for all layers.

    Raises:
        ValueError: a layer lies in no KV group.
    """
    members: dict[Any, dict[str, Any]] = {}
    for name, layer in layers.items():
        kv_group = kv_group_of(name, kv_cache_groups)
        spec = spec_of(name, kv_cache_groups[kv_group].kv_cache_spec)
        members.setdefault((kv_group, layer.get_attn_backend(), spec), {})[name] = layer
    groups = []
    for (kv_group, backend, spec), found in members.items():
        kind = RECURRENT_BACKENDS[spec.mamba_type]
        builder = kind(backend.get_builder_cls()(spec, list(found), config, device), spec, common)
        caches = functools.partial(_caches, kind, tuple(found.values()))
        groups.append(RecurrentGroup(kv_group, builder, tuple(found), caches))
    return tuple(groups)


def _caches(kind: type[RecurrentBackend], layers: Sequence[Any]) -> list[RecurrentCaches]:
    return [kind.caches(layer) for layer in layers]
