# SPDX-License-Identifier: Apache-2.0
"""The KV groups that vLLM makes itself, where an engine takes them: no draft, or DeepSeek-V4 alone.

vLLM, ``v1/core/kv_cache_utils.py``: ``get_kv_cache_groups``, ``unify_kv_cache_spec_page_size`` and
``_get_kv_cache_groups_uniform_page_size``. For DeepSeek-V4 vllm-ascend puts functions of its own in
their place (``patch/platform/patch_kv_cache_utils.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from itertools import chain
from typing import TypeVar

from mkv_ascend.layout.fitting import fitted
from mkv_ascend.layout.kind import Kind
from mkv_ascend.layout.planning import CachedLayer
from mkv_ascend.layout.retention import RetentionKind

__all__ = ["groups_of_compressed", "groups_of_equal_pages"]

Layers = Sequence[CachedLayer]
Item = TypeVar("Item")
SPLIT_FROM = 1.5
"""Kinds of layers with so many times the layers of the rarest kind, or more, are split to its size.
Below, all kinds have one group, as large as the most frequent kind."""
UNSPLIT = 2
"""The first groups of DeepSeek-V4, those of its compressed keys, are never split."""


def groups_of_equal_pages(layers: Layers, padded: int | None) -> list[Layers] | None:
    """Groups of as many layers each, with pages of one size; None where vLLM has no such groups.

    Args:
        layers: of a target without a draft, in the order of vLLM's specs.
        padded: bytes that smaller pages are padded to; None where none is.
    """
    pages = [max(layer.layout.page_bytes, padded or 0) for layer in layers]
    largest = max(pages)
    grown = []
    for layer, page in zip(layers, pages, strict=True):
        if largest % page or (page < largest and layer.layout.kind is Kind.MAMBA):
            return None
        tokens = layer.layout.tokens_per_block * (largest // page)
        grown.append(replace(layer, layout=fitted(layer.layout, tokens)))
    alike = _by(_without_name, grown)
    counts = [len(some) for some in alike]
    most = max(counts)
    size = most if most < SPLIT_FROM * min(counts) else min(counts)
    return [part for some in alike for part in _round_robin(some, size)]


def groups_of_compressed(layers: Layers) -> list[Layers] | None:
    """Groups of DeepSeek-V4's layers; None where vllm-ascend has no such groups.

    Compressed keys have a group for each ratio. Windows are grouped by the tokens of a block. From
    the third group on, groups are split so that each has about as many pages of one size as the
    first.

    Args:
        layers: of the target and of its own predictor, in the order of vLLM's specs.
    """
    keys = [layer for layer in layers if layer.retention.kind is RetentionKind.ALL]
    windows = [layer for layer in layers if layer.retention.kind is RetentionKind.WINDOW]
    by_ratio = sorted(_by(_tokens_of_block, keys), key=lambda group: _tokens_of_block(group[0]))
    whole = [*by_ratio, *_by(_tokens_of_block, windows)]
    if not by_ratio or not all(len({layer.retention for layer in group}) == 1 for group in whole):
        return None
    columns = [_by(_page, group) for group in whole]
    sizes = {_page(layer) for layer in whole[0]}
    if any(len(set(map(len, of_group))) > 1 for of_group in columns[UNSPLIT:]) or any(
        _page(column[0]) not in sizes for column in chain.from_iterable(columns)
    ):
        return None
    rows = _least_padding([max(map(len, of_group)) for of_group in columns])
    split = [
        list(chain.from_iterable(part))
        for of_group in columns[UNSPLIT:]
        for part in _round_robin(list(zip(*of_group, strict=True)), rows)
    ]
    return [*whole[:UNSPLIT], *split]


def _least_padding(numbers: Sequence[int]) -> int:
    """Of sizes from the first number on, the one to whose multiples all are padded by least.

    Of several the largest (vLLM, ``_approximate_gcd``).
    """
    sizes = range(numbers[0], max(numbers) + 1)
    return min(sizes, key=lambda size: (sum(-number % size for number in numbers), -size))


def _round_robin(items: Sequence[Item], size: int) -> list[Sequence[Item]]:
    """As few parts as have at most ``size`` items each, which are assigned to them in turn."""
    parts = -(-len(items) // size)
    return [items[part::parts] for part in range(parts)]


def _by(key: Callable[[CachedLayer], Hashable], layers: Layers) -> list[list[CachedLayer]]:
    """Layers with equal keys together, in the order of the first of each."""
    found: dict[Hashable, list[CachedLayer]] = {}
    for layer in layers:
        found.setdefault(key(layer), []).append(layer)
    return list(found.values())


def _without_name(layer: CachedLayer) -> Hashable:
    return replace(layer, layout=replace(layer.layout, layer=""), backend="")


def _tokens_of_block(layer: CachedLayer) -> int:
    return layer.layout.tokens_per_block


def _page(layer: CachedLayer) -> int:
    return layer.layout.page_bytes
