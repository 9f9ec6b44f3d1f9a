# SPDX-License-Identifier: Apache-2.0
"""Where the blocks of a layer's components lie in a pool, for any number of blocks.

A pool has one or more buffers, each an allocation with the same number of bytes for every page.
With N pages, block b of a component starts at

    N * start_per_block + start_bytes + b * block_stride

of its buffer: a plane starts after the planes before it (N times their bytes), a component of a
page after the components before it.

A page is one block of every group, or k * S of a group's own (``PageShape``): block
``(s * N + page) * k + j`` lies in the page's stretch of the plane s planes behind the first. So the
formula above holds for any k and S, and each component is one contiguous tensor.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mkv_ascend.layout.component import Storage
from mkv_ascend.layout.page_shape import PageShape

ROW_ALIGNMENT = 32
"""Bytes; components start at multiples of it: Ascend vector cores move 32 at a time."""


@dataclass(frozen=True)
class Placement:
    """One component: all numbers in bytes but ``buffer`` (an index) and ``rows`` (a count).

    A block has ``rows`` rows (kernel blocks times replicas) of ``row_bytes`` each, ``row_stride``
    apart; rows follow each other without a gap but in PAGED and PACKED storage. ``overlay``: a
    second view of bytes that other components of the layer have.
    """

    component: str
    buffer: int
    start_per_block: int
    start_bytes: int
    block_stride: int
    rows: int
    row_stride: int
    row_bytes: int
    overlay: bool = False

    def planes(self, shape: PageShape) -> Iterator[tuple[int, int]]:
        """First byte per page of each of its planes, and the one behind the last."""
        width = shape.per_stretch * self.block_stride
        for stretch in range(shape.stretches):
            start = self.start_per_block + stretch * width
            yield start, start + width


@dataclass(frozen=True)
class PlacedLayer:
    """One layer of a pool; ``group`` is the index of its KV group."""

    layer: str
    group: int
    placements: tuple[Placement, ...]


@dataclass(frozen=True)
class Pool:
    """Buffers, and the layers that share them.

    ``buffers``: bytes per page of each. A SPLIT pool has one for each plane, or for all planes of
    one width where a page holds several blocks; a PACKED pool has one.
    """

    storage: Storage
    reason: str
    buffers: tuple[int, ...]
    layers: tuple[PlacedLayer, ...]

    @property
    def bytes_per_block(self) -> int:
        """Bytes of one page in this pool."""
        return sum(self.buffers)
