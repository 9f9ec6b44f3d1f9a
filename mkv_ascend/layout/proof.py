# SPDX-License-Identifier: Apache-2.0
"""The proof that no two blocks of a pool share a byte, for any number of pages.

With N pages, block b of a component has bytes of the ``block_stride`` bytes from

    N * start_per_block + b * block_stride

on, and b is (s * N + page) * k + j: so k blocks of a page are one stretch of k * ``block_stride``
bytes, and the stretches of all pages for one s are a *plane*, bytes ``N * start`` to ``N * end`` of
the buffer for an interval per page from start to end. Three statements without N prove the pool:

1. Each row of a block lies in the block's bytes, behind the row before it, and each plane in the
   buffer. So different blocks of a component share no byte.
2. Two planes of a buffer are the same or have no byte in common: planes whose intervals per page
   do not meet are apart for every N. So a page has the same bytes of a plane, whoever owns it.
3. In one plane, components of one KV group have no byte of a block in common, except an overlay
   with its own layer's components. Of two groups, only one has the page at a time.

What ``pooling`` makes has this form. Other forms are refused, even where they would be sound.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from mkv_ascend.layout.component import ONE_BLOCK, LayoutError, PageShape
from mkv_ascend.layout.pooling import PlacedLayer, Placement, Pool

Plane = tuple[int, int, int]
"""Buffer; first byte and the one behind the last, per block."""

Member = tuple[PlacedLayer, Placement]

SEPARATE = (
    "give these layers pools of their own, or block sizes that make their components equally large"
)


class OverlapError(LayoutError):
    """Two blocks of a pool share a byte, or cannot be proven not to."""


def prove_pool(index: int, pool: Pool, shapes: Sequence[PageShape] = ()) -> None:
    """Raise OverlapError unless no two blocks of the pool share a byte, for any number of pages.

    ``index``: of the pool, for the message. ``shapes``: blocks in a page, by KV group; none where a
    page is a block. Layers of one KV group must not share a byte of the same block either, nor
    components of one layer, except overlays: second views on purpose.
    """
    planes: dict[Plane, list[Member]] = {}
    for layer in pool.layers:
        for part in layer.placements:
            _check_stretch(index, layer, part)
            for start, end in part.planes(shapes[layer.group] if shapes else ONE_BLOCK):
                if start < 0 or end > pool.buffers[part.buffer]:
                    raise OverlapError(
                        f"pool {index}: {part.component} of {layer.layer} leaves its buffer of "
                        f"{pool.buffers[part.buffer]} bytes per page: it has bytes {start} to {end}"
                    )
                planes.setdefault((part.buffer, start, end), []).append((layer, part))
    for plane, other in pairwise(sorted(planes)):
        if plane[0] == other[0] and other[1] < plane[2]:
            described = " and ".join(
                f"{part.component} of {layer.layer} (bytes {part.start_per_block} to "
                f"{part.start_per_block + part.block_stride} per block)"
                for layer, part in (planes[plane][0], planes[other][0])
            )
            raise OverlapError(
                f"pool {index}: blocks of {described} share bytes of buffer {plane[0]}; {SEPARATE}"
            )
    for members in planes.values():
        groups: dict[int, list[Member]] = {}
        for member in members:
            groups.setdefault(member[0].group, []).append(member)
        for of_one_group in groups.values():
            _check_group(index, of_one_group)


def _check_stretch(index: int, layer: PlacedLayer, part: Placement) -> None:
    """Statement 1 for the rows of a block."""
    last = part.start_bytes + (part.rows - 1) * part.row_stride + part.row_bytes
    if part.start_bytes < 0 or part.row_stride < part.row_bytes or last > part.block_stride:
        raise OverlapError(
            f"pool {index}: {part.component} of {layer.layer} leaves its block of "
            f"{part.block_stride} bytes: {part.rows} rows of {part.row_bytes} bytes, "
            f"{part.row_stride} apart, start at byte {part.start_bytes}"
        )


def _check_group(index: int, members: list[Member]) -> None:
    """Statement 3 for those of one group in a plane: pass their rows in the order of their bytes.

    Rows that reach beyond the start of the next one are *open* there. Those that are open at once
    are overlays, or an error was raised: so they are of one layer, and few.
    """
    parts = [part for _, part in members]
    in_step = _go_in_step(parts)
    rows = sorted(
        (start, end, number)
        for number, part in enumerate(parts)
        for start, end in _intervals(part, is_first_enough=in_step)
    )
    open_rows: list[tuple[int, int]] = []
    for start, end, number in rows:
        open_rows = [row for row in open_rows if row[0] > start]
        for _, other in open_rows:
            first, second = (members[one] for one in sorted((number, other)))
            if not _are_overlays(first, second):
                described = " and ".join(f"{x.component} of {y.layer}" for y, x in (first, second))
                raise OverlapError(
                    f"pool {index}: {described}, both of KV group {first[0].group}, share bytes of "
                    f"a block; {SEPARATE}"
                )
        open_rows.append((end, number))


def _go_in_step(parts: list[Placement]) -> bool:
    """Whether rows of one number share bytes if and only if the first ones do, and others never.

    Row i of each part is then i strides behind its first row, and all first rows lie within one
    stride. Pages of a thousand layers have millions of rows.
    """
    if len({part.row_stride for part in parts}) > 1:
        return False
    end = max(part.start_bytes + part.row_bytes for part in parts)
    return end - min(part.start_bytes for part in parts) <= parts[0].row_stride


def _intervals(part: Placement, *, is_first_enough: bool) -> list[tuple[int, int]]:
    """First byte of each row in a block and the one behind it; rows without gaps are one."""
    start, rows, size = part.start_bytes, part.rows, part.row_bytes
    if is_first_enough:
        rows = 1
    elif part.row_stride == size:
        rows, size = 1, rows * size
    starts = (start + row * part.row_stride for row in range(rows))
    return [(first, first + size) for first in starts]


def _are_overlays(first: Member, second: Member) -> bool:
    (layer, one), (other_layer, other) = first, second
    return layer is other_layer and (one.overlay or other.overlay)
