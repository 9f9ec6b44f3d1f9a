# SPDX-License-Identifier: Apache-2.0
"""The draft's layers, sorted into the groups that share a block table and attention metadata.

vLLM 0.23.0 and vllm-ascend 0.23.0 take it that all of a draft's layers lie in one KV group. Here
they may lie in any number, and several attention groups (backend, spec, heads) may share one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vllm.v1.kv_cache_interface import MambaSpec, UniformTypeKVCacheSpecs


@dataclass(frozen=True)
class DraftGroup:
    """Layers of the draft that share one metadata object in every pass.

    Attributes:
        kv_group: id of the KV group whose block table they use.
        table: its place among the KV groups of the draft, the row of its slots.
        backend: attention backend class of the layers.
        spec: their cache's spec, in kernel blocks.
        heads: query heads of a layer.
        layer_names: in the order in which the draft runs them.
    """

    kv_group: int
    table: int
    backend: type[Any]
    spec: Any
    heads: int | None
    layer_names: tuple[str, ...]


@dataclass(frozen=True)
class DraftGroups:
    """All groups of one draft.

    Attributes:
        groups: in the order in which the draft first runs one of their layers.
        kv_groups: ids of the KV groups, each once; ``DraftGroup.table`` counts these.
        block_sizes: tokens in a kernel block, for each of ``kv_groups``.
    """

    groups: tuple[DraftGroup, ...]
    kv_groups: tuple[int, ...]
    block_sizes: tuple[int, ...]

    def layers(self) -> tuple[tuple[str, int], ...]:
        """Each layer with the index of its group; layers of one group stand together."""
        return tuple(
            (name, index) for index, group in enumerate(self.groups) for name in group.layer_names
        )

    def describe(self) -> str:
        """Each KV group of the draft and what its layers share, in words."""
        return "; ".join(
            f"KV group {group.kv_group}: {len(group.layer_names)} layers of "
            f"{type(group.spec).__name__} on {group.backend.__name__}"
            for group in self.groups
        )


def find_groups(
    layers: Mapping[str, Any], kv_cache_groups: Sequence[Any], kernel_block_sizes: Sequence[int]
) -> DraftGroups:
    """Sort the draft's layers into groups.

    Args:
        layers: attention layers of the draft by name, in the order in which it runs them.
        kv_cache_groups: vLLM's ``KVCacheGroupSpec`` of the engine.
        kernel_block_sizes: tokens in a block of each KV group's block table.

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
        key = (kv_group, layer.get_attn_backend(), spec, getattr(layer, "num_heads", None))
        members.setdefault(key, []).append(name)
    return DraftGroups(
        groups=tuple(
            DraftGroup(kv_group, kv_groups.index(kv_group), backend, spec, heads, tuple(names))
            for (kv_group, backend, spec, heads), names in members.items()
        ),
        kv_groups=tuple(kv_groups),
        block_sizes=tuple(kernel_block_sizes[kv_group] for kv_group in kv_groups),
    )


def kv_group_of(layer: str, kv_cache_groups: Sequence[Any]) -> int:
    """The KV group that the layer lies in. ValueError: none."""
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
    """Refuse drafts whose state cannot follow acceptance.

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
