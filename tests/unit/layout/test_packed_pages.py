# SPDX-License-Identifier: Apache-2.0
"""Rows of packed pages: where the kernel blocks of each group lie."""

import itertools

import pytest

from mkv_ascend.layout.component import (
    Component,
    Container,
    LayerLayout,
    LayoutError,
    StateExtent,
    Storage,
    TokenExtent,
)
from mkv_ascend.layout.kind import Kind, Role
from mkv_ascend.layout.plan import make_plan
from mkv_ascend.layout.pooling import ROW_ALIGNMENT, Pool

KERNEL = 4
"""Tokens of a kernel block."""


def attention(layer: str, kernel_blocks: int, dim: int = 16) -> LayerLayout:
    """Keys and values of ``dim`` 16-bit numbers a token, in blocks of so many kernel blocks."""
    extent = TokenExtent(KERNEL * kernel_blocks, 1, dim)
    parts = tuple(Component(name, "bfloat16", extent) for name in ("key", "value"))
    return packed(layer, Kind.FULL_ATTENTION, parts, KERNEL)


def states(layer: str, *elements: int) -> LayerLayout:
    """States of so many 16-bit numbers."""
    parts = tuple(
        Component(f"state{index}", "bfloat16", StateExtent((count,)))
        for index, count in enumerate(elements)
    )
    return packed(layer, Kind.MAMBA, parts, None)


def packed(
    layer: str, kind: Kind, parts: tuple[Component, ...], kernel_block: int | None
) -> LayerLayout:
    return LayerLayout(
        layer=layer,
        role=Role.TARGET,
        kind=kind,
        components=parts,
        storage=Storage.PACKED,
        page_bytes=sum(part.bytes_per_block for part in parts),
        tokens_per_block=64,
        kernel_block=kernel_block,
        container=Container.LIST if kind is Kind.MAMBA else Container.TUPLE,
    )


def ranges(pool: Pool, group: int) -> list[tuple[int, int]]:
    """(first byte, end) of each row of each component of a group in the row of block 0."""
    return sorted(
        (start, start + part.row_bytes)
        for layer in pool.layers
        if layer.group == group
        for part in layer.placements
        for start in range(
            part.start_bytes, part.start_bytes + part.rows * part.row_stride, part.row_stride
        )
    )


@pytest.mark.parametrize(
    ("groups", "least"),
    [
        # A row of 2 and of 3 kernel blocks: neither of 256 bytes nor of 288, but of 384.
        ([[attention("a", 2, dim=8)], [attention("b", 3, dim=4)]], 384),
        # 34 bytes of a state: what follows it is aligned.
        ([[states("s", 17, 48), states("t", 17, 48)], [attention("a", 2)]], 512),
        # Two layers of four kernel blocks with keys and values of 128 bytes.
        ([[attention("a", 4), attention("b", 4)], [states("s", 40, 300)], [states("t", 1)]], 2048),
        ([[states("s", 1)]], 32),
    ],
    ids=["unequal splits", "odd states", "three groups", "one state"],
)
def test_rows_are_aligned_and_layers_of_a_group_share_no_byte(
    groups: list[list[LayerLayout]], least: int
) -> None:
    (pool,) = make_plan(groups).pools
    (row,) = pool.buffers
    assert row == least
    for layer in pool.layers:
        for part in layer.placements:
            assert part.block_stride == row
            # As a kernel finds block ``b * rows + i``: by one stride, over all blocks.
            assert part.rows * part.row_stride == row
            assert part.start_bytes % ROW_ALIGNMENT == part.row_stride % ROW_ALIGNMENT == 0
    for group in range(len(groups)):
        found = ranges(pool, group)
        assert all(first[1] <= second[0] for first, second in itertools.pairwise(found))
        assert found[-1][1] <= row


def test_layers_of_one_block_table_split_blocks_alike() -> None:
    with pytest.raises(LayoutError, match=r"\[2, 3\] kernel blocks; layers of one block table"):
        make_plan([[attention("a", 2), attention("b", 3)]])


def test_a_state_that_kernel_blocks_do_not_divide_is_refused_by_its_name() -> None:
    """Beside keys in four kernel blocks, of which each would have a part of it."""
    keys = Component("key", "bfloat16", TokenExtent(4 * KERNEL, 1, 16))
    parts = (keys, Component("state", "bfloat16", StateExtent((3,))))
    with pytest.raises(LayoutError, match="state: bytes: 6 is not a multiple of 4"):
        make_plan([[packed("a", Kind.FULL_ATTENTION, parts, KERNEL)]])
