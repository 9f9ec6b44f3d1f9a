# SPDX-License-Identifier: Apache-2.0
"""What recipes share: the facts that they need of a layer, and how its layout is put together.

Contiguous components are not padded: specs are padded to make pages equal, and pools share planes
instead. PAGED layouts keep the page that the spec asks for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mkv_ascend.layout.component import (
    Component,
    Container,
    LayerLayout,
    LayoutError,
    Storage,
    TokenExtent,
)
from mkv_ascend.layout.kind import Kind, Role


@dataclass(frozen=True)
class LayerFacts:
    """What a recipe must know of a layer beyond its spec.

    ``kernel_block``: rows per block of its backend, None where it takes the manager's.
    ``takes_strides``: whether its operators take any stride between blocks. Caches of DeepSeek-V4
    and of hidden states take pages one behind the other anyhow.
    ``latent_dim``, ``rope_dim``: of MLA layers, whose spec has only the sum.
    ``key_dtype``, ``value_dtype``: of quantised caches, where they are not the spec's (for MLA the
    latent is the key, the rope the value).
    ``full_indexer_view``: A5 reads keys and scales of DeepSeek-V4's indexer as one tensor too.
    ``ranks``: where ranks share each sequence's keys, and this layer keeps all of them on each of
    these ranks: a block has as many times its tokens, and so has its kernel block.
    """

    layer: str
    role: Role
    kernel_block: int | None = None
    takes_strides: bool = False
    latent_dim: int | None = None
    rope_dim: int | None = None
    key_dtype: str | None = None
    value_dtype: str | None = None
    full_indexer_view: bool = False
    ranks: int = 1


def dtype_name(dtype: object) -> str:
    """``bfloat16`` of ``torch.bfloat16``, or of the string itself."""
    return str(dtype).removeprefix("torch.")


def tokens(
    name: str, rows: int, heads: int, dim: int, dtype: object, *, replicas: int = 1
) -> Component:
    """A component with a row per token, in the order (tokens, heads, dim)."""
    return Component(name, dtype_name(dtype), TokenExtent(rows, heads, dim), replicas)


def build_layout(
    spec: Any,
    facts: LayerFacts,
    kind: Kind,
    components: list[Component],
    *,
    container: Container = Container.TUPLE,
    takes_strides: bool = False,
    tokens_per_block: int | None = None,
) -> LayerLayout:
    """A layout whose components must add up to the page that the spec counts.

    ``takes_strides``: whether the operators take pages one behind the other. ``tokens_per_block``:
    where it is not the spec's block size.
    """
    used = sum(part.bytes_per_block for part in components if not part.overlay)
    _check_page(spec, facts, used)
    storage = Storage.PAGED if takes_strides else Storage.SPLIT
    if facts.takes_strides:
        storage = Storage.PACKED
    padded: int = max(used, getattr(spec, "page_size_padded", None) or 0)
    return LayerLayout(
        layer=facts.layer,
        role=facts.role,
        kind=kind,
        components=tuple(components),
        storage=storage,
        page_bytes=padded if storage is Storage.PAGED else used,
        tokens_per_block=spec.block_size if tokens_per_block is None else tokens_per_block,
        kernel_block=facts.kernel_block,
        container=container,
    )


def _check_page(spec: Any, facts: LayerFacts, used: int) -> None:
    """The spec's own page must be the components' bytes, or those padded."""
    page: int = spec.page_size_bytes
    padded = getattr(spec, "page_size_padded", None)
    # AscendMLAAttentionSpec has page_size_padded but does not add it to its page.
    if used != page and (padded is None or padded < used or page != padded):
        raise LayoutError(
            f"layer {facts.layer}: {type(spec).__name__} counts {page} bytes per block, its "
            f"components need {used}; the recipe and the spec do not fit"
        )


def refuse_quantisation(spec: Any, facts: LayerFacts) -> None:
    """Packed and per-token-head caches of vLLM, which no backend of vllm-ascend serves."""
    mode = getattr(spec, "kv_quant_mode", None)
    if getattr(mode, "is_per_token_head", False) or getattr(mode, "is_nvfp4", False):
        raise NotImplementedError(
            f"layer {facts.layer}: KV quantisation {getattr(mode, 'name', mode)} is not planned; "
            "choose another --kv-cache-dtype"
        )
    if getattr(spec, "tq_slot_size", 0):
        raise NotImplementedError(f"layer {facts.layer}: TurboQuant caches are not planned")
    if getattr(spec, "cache_dtype_str", None) == "fp8_ds_mla":
        raise NotImplementedError(
            f"layer {facts.layer}: fp8_ds_mla is a CUDA format; choose another --kv-cache-dtype"
        )
