# SPDX-License-Identifier: Apache-2.0
"""The proof that no two blocks of a pool share a byte, for any number of blocks.

Let A and B be two runs of bytes of a pool's buffer: with N blocks, block b of A is the ``length``
bytes from ``start_per_block * N + start_bytes + b * stride`` on. Blocks b of A and b' of B share a
byte when

    -length of A < distance < length of B,   distance = start of b in A - start of b' in B.

For b > b' write b' = v, b = v + 1 + t, N = v + 2 + t + u with t, u, v >= 0: every choice of the
three is a possible (N, b, b') and the other way round. The distance is then linear in them,

    distance = c + t * (n + a) + v * (n + a - s) + u * n,

with n = difference of ``start_per_block``, a and s the strides of A and B. So the question is
whether sums of three integers, each taken zero or more times, meet an interval: ``combinations.py``
decides it exactly. b < b' is the same with A and B swapped, b = b' has two terms. No number of
blocks is ever enumerated to prove a plan; a small one is looked for only to name a clash well.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mkv_ascend.layout.combinations import find_combination
from mkv_ascend.layout.component import LayoutError
from mkv_ascend.layout.placement import PlacedLayer, Placement, Pool

__all__ = ["Clash", "OverlapError", "Run", "find_clash", "prove_pool", "runs_of"]

SMALL_NUM_BLOCKS = 32
"""Numbers of blocks tried first, so that an error names small block ids."""


@dataclass(frozen=True)
class Run:
    """Bytes that one block has in one piece, for every block of a component; all in bytes."""

    buffer: int
    start_per_block: int
    start_bytes: int
    stride: int
    length: int

    def start(self, num_blocks: int, block: int) -> int:
        """First byte of ``block`` in the buffer."""
        return self.start_per_block * num_blocks + self.start_bytes + block * self.stride


@dataclass(frozen=True)
class Clash:
    """With ``num_blocks`` blocks, ``byte`` of the buffer is in both blocks."""

    num_blocks: int
    first_block: int
    second_block: int
    byte: int


class OverlapError(LayoutError):
    """Two blocks of a pool share a byte."""


def runs_of(placement: Placement) -> tuple[Run, ...]:
    """The runs of a component: one when its rows follow each other without a gap."""
    fields = (placement.buffer, placement.start_per_block)
    if placement.row_stride == placement.row_bytes:
        length = placement.rows * placement.row_bytes
        return (Run(*fields, placement.start_bytes, placement.block_stride, length),)
    return tuple(
        Run(
            *fields,
            placement.start_bytes + row * placement.row_stride,
            placement.block_stride,
            placement.row_bytes,
        )
        for row in range(placement.rows)
    )


def find_clash(first: Run, second: Run, *, same_block: bool = False) -> Clash | None:
    """Two different blocks (the same block when ``same_block``) that share a byte, or None.

    Exact for every number of blocks.
    """
    if first.buffer != second.buffer:
        return None
    if same_block:
        clash = _clash_in_one_block(first, second)
    else:
        clash = _clash_of_later_block(first, second)
        if clash is None:
            clash = _clash_of_later_block(second, first)
            if clash is not None:
                clash = Clash(clash.num_blocks, clash.second_block, clash.first_block, clash.byte)
    return clash and (_small_clash(first, second, same_block) or clash)


def _clash(first: Run, second: Run, num_blocks: int, block: int, other: int) -> Clash:
    byte = max(first.start(num_blocks, block), second.start(num_blocks, other))
    return Clash(num_blocks, block, other, byte)


def _clash_of_later_block(first: Run, second: Run) -> Clash | None:
    """A clash of a block of ``first`` with an earlier block of ``second``."""
    per_block = first.start_per_block - second.start_per_block
    constant = 2 * per_block + first.start_bytes - second.start_bytes + first.stride
    found = find_combination(
        (per_block + first.stride, per_block + first.stride - second.stride, per_block),
        1 - first.length - constant,
        second.length - 1 - constant,
    )
    if found is None:
        return None
    gap, other, rest = found
    return _clash(first, second, other + 2 + gap + rest, other + 1 + gap, other)


def _clash_in_one_block(first: Run, second: Run) -> Clash | None:
    """A clash of a block with itself: b = v, N = v + 1 + u."""
    per_block = first.start_per_block - second.start_per_block
    constant = per_block + first.start_bytes - second.start_bytes
    found = find_combination(
        (per_block + first.stride - second.stride, per_block, 0),
        1 - first.length - constant,
        second.length - 1 - constant,
    )
    if found is None:
        return None
    block, rest, _ = found
    return _clash(first, second, block + 1 + rest, block, block)


def _small_clash(first: Run, second: Run, same_block: bool) -> Clash | None:
    """A clash with the fewest blocks, where that is few. Finding none proves nothing."""
    for num_blocks in range(1, SMALL_NUM_BLOCKS):
        for block in range(num_blocks):
            start = first.start(num_blocks, block)
            for other in [block] if same_block else _near(second, num_blocks, start, first.length):
                distance = start - second.start(num_blocks, other)
                if (same_block or other != block) and -first.length < distance < second.length:
                    return _clash(first, second, num_blocks, block, other)
    return None


def _near(run: Run, num_blocks: int, start: int, length: int) -> Iterator[int]:
    """Blocks of ``run`` that may meet the ``length`` bytes from ``start`` on."""
    if run.stride <= 0:
        yield from range(num_blocks)
        return
    origin = run.start(num_blocks, 0)
    lowest = (start - run.length - origin) // run.stride
    highest = (start + length - origin) // run.stride
    yield from range(max(lowest, 0), min(highest, num_blocks - 1) + 1)


def _check_inside(pool: Pool, index: int, layer: PlacedLayer, placement: Placement) -> None:
    """Every block lies in its buffer: a linear function of b and N - b - 1, both >= 0."""
    size = pool.buffers[placement.buffer]
    for run in runs_of(placement):
        below = (run.start_per_block, run.start_per_block + run.stride)
        first = run.start_per_block + run.start_bytes
        above = (size - run.start_per_block, size - run.start_per_block - run.stride)
        last = size - first - run.length
        if min(*below, *above, first, last) < 0:
            raise OverlapError(
                f"pool {index}: {placement.component} of {layer.layer} leaves its buffer of {size} "
                f"bytes per block: starts at {run.start_per_block} bytes per block + "
                f"{run.start_bytes}, {run.length} bytes every {run.stride}"
            )


def prove_pool(index: int, pool: Pool) -> None:
    """Raise OverlapError unless no two blocks of the pool share a byte, for any number of blocks.

    Layers of one KV group must not share a byte of the same block either, nor components of one
    layer, but for overlays: second views on purpose.
    """
    proven: set[tuple[object, ...]] = set()
    for layer in pool.layers:
        for placement in layer.placements:
            _check_inside(pool, index, layer, placement)
    for position, first in enumerate(pool.layers):
        for second in pool.layers[position:]:
            same_group = first.group == second.group
            key = (first.placements, second.placements, same_group, first is second)
            if key not in proven:
                _prove_pair(index, first, second)
                proven.add(key)


def _prove_pair(index: int, first: PlacedLayer, second: PlacedLayer) -> None:
    for position, one in enumerate(first.placements):
        # Of a layer with itself each pair of components once.
        start = position if first is second else 0
        for other in second.placements[start:]:
            _prove_components(index, (first, one), (second, other))


def _prove_components(
    index: int, first: tuple[PlacedLayer, Placement], second: tuple[PlacedLayer, Placement]
) -> None:
    """Different blocks never; the same block only where it belongs to one of the two at a time."""
    (layer, one), (other_layer, other) = first, second
    itself = layer is other_layer and one is other
    overlay = layer is other_layer and not itself and (one.overlay or other.overlay)
    exclusive = layer.group == other_layer.group and not overlay
    for run_index, run in enumerate(runs_of(one)):
        for other_index, other_run in enumerate(runs_of(other)):
            clash = find_clash(run, other_run)
            if clash is None and exclusive and not (itself and run_index == other_index):
                clash = find_clash(run, other_run, same_block=True)
            if clash is not None:
                raise OverlapError(_describe(index, first, second, run.buffer, clash))


def _describe(
    index: int,
    first: tuple[PlacedLayer, Placement],
    second: tuple[PlacedLayer, Placement],
    buffer: int,
    clash: Clash,
) -> str:
    return (
        f"pool {index}: with {clash.num_blocks} blocks, byte {clash.byte} of buffer {buffer} is in "
        f"block {clash.first_block} of {first[0].layer} ({first[1].component}) and in block "
        f"{clash.second_block} of {second[0].layer} ({second[1].component}); give these layers "
        "pools of their own, or block sizes that make their components equally large"
    )
