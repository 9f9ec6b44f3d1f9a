# SPDX-License-Identifier: Apache-2.0
"""Plans whose pages hold several blocks of a group: whose bytes every block has, one by one.

A block is ``(s * N + page) * k + j``: written down here once more, in plain loops.
"""

import dataclasses
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mkv_ascend.layout.component import ONE_BLOCK, LayerLayout, PageShape, Storage
from mkv_ascend.layout.materialize import materialize
from mkv_ascend.layout.plan import CachePlan, make_plan
from mkv_ascend.layout.pooling import page_bytes
from mkv_ascend.layout.proof import OverlapError
from tests.support.caches.layouts import keys_and_values

PAGES = 3


@st.composite
def shared(draw: st.DrawFn) -> tuple[list[list[LayerLayout]], list[PageShape]]:
    groups, shapes = [], []
    for group in range(draw(st.integers(1, 3))):
        block = draw(st.sampled_from([8, 16]))
        groups.append(
            [
                keys_and_values(
                    f"{group}.{layer}", draw(st.integers(1, 2)), 16, block=block, kernel_block=8
                )
                for layer in range(draw(st.integers(1, 3)))
            ]
        )
        shapes.append(PageShape(draw(st.integers(1, 3)), draw(st.integers(1, 3))))
    return groups, shapes


def pages_by_block(shape: PageShape) -> Iterator[tuple[int, int]]:
    """Each block of a group with the page that it lies in."""
    for stretch in range(shape.stretches):
        for page in range(PAGES):
            for place in range(shape.per_stretch):
                yield (stretch * PAGES + page) * shape.per_stretch + place, page


def bytes_of(plan: CachePlan) -> Iterator[tuple[tuple[int, int], int, tuple[int, int]]]:
    """(pool, byte), page, (group, block) of every byte of every block."""
    bound = plan.bind(PAGES)
    for name, layer in bound.views().items():
        group = plan.group_of[name]
        for view in layer.views:
            row = view.strides[0] * layer.layout.components[0].item_bytes
            for block, page in pages_by_block(plan.shapes[group]):
                start = view.offset_bytes + block * view.rows_per_block * row
                for byte in range(start, start + view.rows_per_block * row):
                    yield (view.buffer, byte), page, (group, block)


@settings(max_examples=60, deadline=None)
@given(shared())
def test_a_byte_belongs_to_one_page_and_to_one_block_of_a_group(
    drawn: tuple[list[list[LayerLayout]], list[PageShape]],
) -> None:
    groups, shapes = drawn
    plan = make_plan(groups, shapes=shapes)
    page_of: dict[tuple[int, int], int] = {}
    seen: set[tuple[tuple[int, int], int]] = set()
    for byte, page, (group, _) in bytes_of(plan):
        assert page_of.setdefault(byte, page) == page
        assert (byte, group) not in seen
        seen.add((byte, group))
    assert len(page_of) <= plan.bind(PAGES).total_bytes
    assert plan.bytes_per_block == page_bytes(groups, shapes)


def test_blocks_that_tile_a_page_leave_nothing_idle() -> None:
    """Four blocks of a small layer lie in each stretch of a large one's keys and values."""
    large = [keys_and_values("large", 4, 16, block=16, kernel_block=16)]
    small = [keys_and_values("small", 1, 16, block=16, kernel_block=16)]
    plan = make_plan([large, small], shapes=[ONE_BLOCK, PageShape(4, 1)])
    assert [capacity.idle_bytes for capacity in plan.capacity()] == [0, 0]
    assert plan.bytes_per_block == large[0].page_bytes
    views = plan.bind(PAGES).views()
    assert views["small"].views[0].shape[0] == 4 * PAGES
    assert views["large"].views[0].shape[0] == PAGES


def test_components_span_neighbouring_planes() -> None:
    """One layer takes the planes of two, and has a block in each."""
    two = [
        keys_and_values("a", 1, 16, block=16, kernel_block=16),
        keys_and_values("b", 1, 16, block=16, kernel_block=16),
    ]
    one = [keys_and_values("c", 1, 16, block=16, kernel_block=16)]
    plan = make_plan([two, one], shapes=[ONE_BLOCK, PageShape(1, 2)])
    assert plan.bytes_per_block == 2 * one[0].page_bytes
    assert [capacity.idle_bytes for capacity in plan.capacity()] == [0, 0]


def test_tensors_have_all_blocks_and_a_groups_own_are_zeroed() -> None:
    small = [keys_and_values("small", 1, 16, block=16, kernel_block=16)]
    large = [keys_and_values("large", 4, 16, block=16, kernel_block=16)]
    plan = make_plan([large, small], shapes=[ONE_BLOCK, PageShape(2, 2)])
    made = materialize(plan.bind(PAGES), torch.device("cpu"))
    keys, values = made.caches["small"]
    assert keys.is_contiguous()
    assert keys.shape[0] == 4 * PAGES
    for raw in made.raw:
        raw.fill_(1)
    for plane in made.planes[1]:
        plane[5].zero_()
    for tensor in (keys, values):
        assert [block for block in range(4 * PAGES) if not tensor[block].any()] == [5]
    assert sum(plane.shape[1] for plane in made.planes[1]) == small[0].page_bytes


def test_a_plan_with_other_shapes_than_its_planes_were_laid_for_is_refused() -> None:
    """k and S swapped, or one block more: planes would meet, or leave their buffer."""
    groups = [
        [keys_and_values("a", 2, 16, block=16, kernel_block=16)],
        [keys_and_values("b", 1, 16, block=16, kernel_block=16)],
    ]
    plan = make_plan(groups, shapes=[ONE_BLOCK, PageShape(2, 1)])
    for shape in (PageShape(1, 2), PageShape(3, 1), PageShape(2, 2)):
        wrong = dataclasses.replace(plan.groups[1], shape=shape)
        with pytest.raises(OverlapError):
            dataclasses.replace(plan, groups=(plan.groups[0], wrong))


def test_packed_pages_share_a_row_of_which_a_block_is_a_part() -> None:
    """A layer with four times the bytes has one block where the other has four."""
    large, small = (
        dataclasses.replace(
            keys_and_values(name, heads, 16, block=16, kernel_block=16), storage=Storage.PACKED
        )
        for name, heads in (("large", 4), ("small", 1))
    )
    shapes = [ONE_BLOCK, PageShape(4)]
    plan = make_plan([[large], [small]], shapes=shapes)
    assert plan.bytes_per_block == page_bytes([[large], [small]], shapes) == large.page_bytes
    assert [capacity.idle_bytes for capacity in plan.capacity()] == [0, 0]
    made = materialize(plan.bind(PAGES), torch.device("cpu"))
    keys, values = made.caches["small"]
    assert keys.shape[0] == values.shape[0] == 4 * PAGES
    for raw in made.raw:
        raw.fill_(1)
    (plane,) = made.planes[1]
    plane[5].zero_()
    for tensor in (keys, values):
        assert [block for block in range(4 * PAGES) if not tensor[block].any()] == [5]
    with pytest.raises(OverlapError):
        make_plan([[large], [small]], shapes=[ONE_BLOCK, PageShape(1, 4)])
