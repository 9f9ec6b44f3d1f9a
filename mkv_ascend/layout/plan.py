# SPDX-License-Identifier: Apache-2.0
"""The plan of all KV caches of a process: groups, pools and offsets, proven when it is made.

A plan does not depend on the number of blocks: memory profiling decides that later, and
``CachePlan.bind`` then gives integers for every tensor. A plan is a value: compare it, hash it.
None can exist that lets two blocks share a byte: making one proves it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from mkv_ascend.layout.bound import BoundPlan
from mkv_ascend.layout.component import LayerLayout, LayoutError, exact_quotient
from mkv_ascend.layout.page_shape import ONE_BLOCK, PageShape
from mkv_ascend.layout.placement import PlacedLayer, Pool
from mkv_ascend.layout.pooling import make_pools
from mkv_ascend.layout.proof import prove_pool

BUFFER_ALIGNMENT = 512
"""Bytes; what a tensor of its own gets from torch_npu's allocator, as from CUDA's."""
TRANSFER_ALIGNMENT = 2 * 1024 * 1024
"""Bytes; vllm-ascend aligns raw caches to 2 MiB where a KV connector registers them."""


@dataclass(frozen=True)
class KVGroup:
    """Layers that share one block table, in the order of execution.

    ``tokens_per_block``: tokens of a request per block. ``kernel_block``: rows of the block that
    the block table is split into, None where no layer splits. ``shape``: blocks in a page.
    """

    layers: tuple[str, ...]
    tokens_per_block: int
    kernel_block: int | None
    shape: PageShape = ONE_BLOCK


@dataclass(frozen=True)
class GroupCapacity:
    """What a page of a group's blocks holds, in bytes; any page costs ``total_bytes``."""

    used_bytes: int
    total_bytes: int

    @property
    def idle_bytes(self) -> int:
        """Bytes of other groups' planes that lie idle while a page belongs to this group."""
        return self.total_bytes - self.used_bytes


@dataclass(frozen=True)
class CachePlan:
    """Make one with ``make_plan``; LayoutError (OverlapError) when it cannot be.

    ``alignment``: bytes that each buffer starts at a multiple of. ``aliases``: (layer, owner)
    pairs, layers without a cache that read the owner's.
    """

    layers: tuple[LayerLayout, ...]
    groups: tuple[KVGroup, ...]
    pools: tuple[Pool, ...]
    alignment: int = BUFFER_ALIGNMENT
    aliases: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        if self.alignment <= 0 or self.alignment % BUFFER_ALIGNMENT:
            raise LayoutError(
                f"buffers aligned to {self.alignment} bytes; use a multiple of {BUFFER_ALIGNMENT}"
            )
        self._check_layers()
        for index, group in enumerate(self.groups):
            self._check_group(index, group)
        for index, pool in enumerate(self.pools):
            prove_pool(index, pool, self.shapes)

    @cached_property
    def layout_of(self) -> Mapping[str, LayerLayout]:
        """Layout by layer."""
        return {layout.layer: layout for layout in self.layers}

    @cached_property
    def group_of(self) -> Mapping[str, int]:
        """Index of the KV group by layer."""
        return {layer: index for index, group in enumerate(self.groups) for layer in group.layers}

    @cached_property
    def shapes(self) -> tuple[PageShape, ...]:
        """Blocks in a page, by KV group."""
        return tuple(group.shape for group in self.groups)

    @property
    def bytes_per_block(self) -> int:
        """Bytes of one page over all pools: of one block id where a page is a block."""
        return sum(pool.bytes_per_block for pool in self.pools)

    def tied_layers(self) -> list[tuple[int, list[str]]]:
        """Layers that have buffers in common, or by way of others; with the bytes of a page there.

        vLLM's name for such a set is a KV cache tensor.
        """
        found: list[tuple[set[tuple[int, int]], list[str]]] = []
        for index, pool in enumerate(self.pools):
            for member in pool.layers:
                buffers = {(index, part.buffer) for part in member.placements}
                layers: list[str] = []
                for others in [one for one in found if one[0] & buffers]:
                    found.remove(others)
                    buffers |= others[0]
                    layers += others[1]
                found.append((buffers, [*layers, member.layer]))
        sizes = [pool.buffers for pool in self.pools]
        return [(sum(sizes[pool][one] for pool, one in tied), names) for tied, names in found]

    @property
    def overhead_bytes(self) -> int:
        """The most bytes that aligning all buffers can cost, for any number of blocks."""
        return self.alignment * sum(len(pool.buffers) for pool in self.pools)

    def num_blocks_in(self, memory_bytes: int) -> int:
        """Blocks that fit into ``memory_bytes``; may be 0.

        Alignment for KV transfer is taken off. That of the allocator is not, at most 512 bytes a
        buffer: it is no part of what memory profiling hands out.
        """
        taken = self.overhead_bytes if self.alignment > BUFFER_ALIGNMENT else 0
        return max(memory_bytes - taken, 0) // self.bytes_per_block

    def bind(self, num_blocks: int) -> BoundPlan:
        """The plan for ``num_blocks`` pages: sizes of buffers, shapes, strides, offsets."""
        return BoundPlan(
            self.layers, self.pools, self.alignment, self.aliases, num_blocks, self.shapes
        )

    def capacity(self) -> tuple[GroupCapacity, ...]:
        """For each KV group what a page holds, and what lies idle in it."""
        return tuple(
            GroupCapacity(
                group.shape.blocks * sum(self.layout_of[name].used_bytes for name in group.layers),
                self.bytes_per_block,
            )
            for group in self.groups
        )

    def _check_layers(self) -> None:
        planned = [layout.layer for layout in self.layers]
        grouped = [layer for group in self.groups for layer in group.layers]
        placed = [placed.layer for pool in self.pools for placed in pool.layers]
        for what, names in (("KV groups", grouped), ("pools", placed), ("layouts", planned)):
            wrong = _differences(planned, names)
            if wrong:
                raise LayoutError(f"layers that are not exactly once in the {what}: {wrong}")
        for pool in self.pools:
            for member in pool.layers:
                self._check_placements(pool, member)
        for layer, owner in self.aliases:
            if layer in self.layout_of or owner not in self.layout_of:
                raise LayoutError(
                    f"{layer} is to read the cache of {owner}: the first must have none of its "
                    "own, the second must have one"
                )

    def _check_placements(self, pool: Pool, member: PlacedLayer) -> None:
        layout = self.layout_of[member.layer]
        if self.group_of[member.layer] != member.group:
            raise LayoutError(f"{member.layer} is not of KV group {member.group}")
        named = [placement.component for placement in member.placements]
        if named != [part.name for part in layout.components]:
            raise LayoutError(f"{member.layer}: its components are not those placed: {named}")
        for part, placement in zip(layout.components, member.placements, strict=True):
            what = f"{member.layer}, {part.name}"
            if not 0 <= placement.buffer < len(pool.buffers):
                raise LayoutError(f"{what}: no buffer {placement.buffer} in its pool")
            if placement.rows * placement.row_bytes != part.bytes_per_block or (
                placement.rows != part.rows_per_block(layout.kernel_block)
            ):
                raise LayoutError(
                    f"{what}: {placement.rows} rows of {placement.row_bytes} bytes placed for "
                    f"{part.bytes_per_block} bytes per block"
                )
            if placement.overlay != part.overlay:
                raise LayoutError(f"{what}: placed as overlay, or the other way round")
            if placement.block_stride != placement.rows * placement.row_stride:
                raise LayoutError(f"{what}: its rows are not at one distance over all blocks")
            for number in (placement.start_per_block, placement.start_bytes, placement.row_stride):
                exact_quotient(number, part.item_bytes, f"{what}: start or stride by element")

    def _check_group(self, index: int, group: KVGroup) -> None:
        for layer in group.layers:
            layout = self.layout_of[layer]
            if layout.tokens_per_block != group.tokens_per_block:
                raise LayoutError(
                    f"KV group {index} has blocks of {group.tokens_per_block} tokens, {layer} of "
                    f"{layout.tokens_per_block}; give it a group of its own or that block size"
                )
            if layout.kernel_block not in (None, group.kernel_block) and (
                # Of all ranks' tokens, in a block that stands for those of one.
                layout.kernel_splits * (group.kernel_block or 0) != group.tokens_per_block
            ):
                raise LayoutError(
                    f"KV group {index} splits blocks into {group.kernel_block} rows, {layer} into "
                    f"{layout.kernel_block}; one block table cannot serve both"
                )


def _differences(wanted: Iterable[str], given: Iterable[str]) -> list[str]:
    """Names that are not exactly once in both."""
    left, right = Counter(wanted), Counter(given)
    return sorted(name for name in left.keys() | right.keys() if not left[name] == right[name] == 1)


def make_plan(
    groups: Sequence[Sequence[LayerLayout]],
    *,
    shapes: Sequence[PageShape] = (),
    kv_transfer: bool = False,
    aliases: Mapping[str, str] | None = None,
) -> CachePlan:
    """The plan of these KV groups, each given as its layers' layouts in the order of execution.

    ``shapes``: blocks in a page, by group; none where a page is one block of every group.
    ``kv_transfer`` aligns every buffer to 2 MiB. ``aliases`` maps layers without a cache to the
    layers whose cache they read.
    Raises LayoutError with the numbers when something does not divide or fit.
    """
    shapes = shapes or [ONE_BLOCK] * len(groups)
    return CachePlan(
        layers=tuple(layout for group in groups for layout in group),
        groups=tuple(_group(group, shape) for group, shape in zip(groups, shapes, strict=True)),
        pools=make_pools(groups, shapes),
        alignment=TRANSFER_ALIGNMENT if kv_transfer else BUFFER_ALIGNMENT,
        aliases=tuple(sorted((aliases or {}).items())),
    )


def _group(layouts: Sequence[LayerLayout], shape: PageShape) -> KVGroup:
    if not layouts:
        raise LayoutError("a KV group without layers; leave it out")
    kernel_blocks = [layout.kernel_block for layout in layouts if layout.kernel_block is not None]
    return KVGroup(
        layers=tuple(layout.layer for layout in layouts),
        tokens_per_block=layouts[0].tokens_per_block,
        kernel_block=kernel_blocks[0] if kernel_blocks else None,
        shape=shape,
    )
