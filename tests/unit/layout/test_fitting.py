# SPDX-License-Identifier: Apache-2.0
"""Planned groups become pools that cost what the planner said."""

import dataclasses

import pytest

from benchmarks.models import ModelLayer, load_pair
from benchmarks.rows import REQUEST, ROWS, Row
from mkv_ascend.layout.component import (
    ONE_BLOCK,
    Component,
    LayerLayout,
    LayoutError,
    StateExtent,
    Storage,
    TokenExtent,
)
from mkv_ascend.layout.kind import Kind, Role
from mkv_ascend.layout.page_planning import plan_pages
from mkv_ascend.layout.plan import make_plan
from mkv_ascend.layout.planning import fitted, fitted_groups, requirements_of
from mkv_ascend.layout.requirements import Retention, RetentionKind


def layout_of(layer: ModelLayer, storage: Storage) -> LayerLayout:
    components = [
        Component(f"part{index}", "bfloat16", TokenExtent(layer.block_size, 1, row))
        for index, row in enumerate(layer.rows)
    ]
    components += [
        Component(f"state{index}", "bfloat16", StateExtent(shape))
        for index, shape in enumerate(layer.states)
    ]
    return LayerLayout(
        layer=layer.name,
        role=layer.role,
        kind=layer.kind,
        components=tuple(components),
        storage=storage,
        page_bytes=layer.page_bytes,
        tokens_per_block=layer.block_size,
        kernel_block=128 if layer.rows else None,
    )


@pytest.mark.parametrize("one_block", [False, True])
@pytest.mark.parametrize("storage", [Storage.SPLIT, Storage.PAGED, Storage.PACKED], ids=str)
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_plan_costs_what_its_planner_says(row: Row, storage: Storage, one_block: bool) -> None:
    pair = load_pair(row.target, row.draft)
    layouts = {layer.name: layout_of(layer, storage) for layer in pair.layers}
    expected = [
        dataclasses.replace(need, is_packed=storage is Storage.PACKED)
        for need in pair.needs(takes_strides=storage is Storage.PAGED)
    ]
    needs = [
        requirements_of(layouts[need.name], need.retention, need.block_sizes, table=need.table)
        for need in expected
    ]
    assert needs == expected
    found = plan_pages(needs, REQUEST, one_block=one_block)
    shapes = [group.shape for group in found.groups]
    assert not one_block or set(shapes) == {ONE_BLOCK}
    plan = make_plan(fitted_groups(layouts, found.groups), shapes=shapes)
    assert plan.bytes_per_block == found.page_bytes
    assert [group.layers for group in plan.groups] == [group.layers for group in found.groups]


def attention() -> LayerLayout:
    parts = (Component("k", "bfloat16", TokenExtent(128, 2, 64)),)
    return LayerLayout(
        "a", Role.TARGET, Kind.FULL_ATTENTION, parts, Storage.SPLIT, 32768, 128, kernel_block=128
    )


def test_a_layout_follows_the_block_size_of_its_group() -> None:
    larger = fitted(attention(), 256)
    assert larger.components[0].extent == TokenExtent(256, 2, 64)
    assert (larger.tokens_per_block, larger.page_bytes, larger.kernel_splits) == (256, 65536, 2)
    assert fitted(larger, 128) == attention()


def test_what_cannot_follow_is_refused() -> None:
    with pytest.raises(LayoutError, match="192 is not a multiple of 128"):
        fitted(attention(), 192)


def test_rows_that_do_not_fill_a_component_are_refused_by_its_name() -> None:
    parts = (Component("k", "int8", TokenExtent(3, 1, 1)),)
    layout = LayerLayout("a", Role.TARGET, Kind.FULL_ATTENTION, parts, Storage.SPLIT, 3, 2)
    with pytest.raises(LayoutError, match=r"layer a, k: .* by rows: 3 is not a multiple of 2"):
        requirements_of(layout, Retention(RetentionKind.ALL))
    with pytest.raises(LayoutError, match=r"layer a: tokens of a .*: 2 is not a multiple of 4"):
        requirements_of(layout, Retention(RetentionKind.ALL, tokens_per_row=4))


def test_padding_of_a_strided_page_is_counted_once_at_any_block_size() -> None:
    parts = (Component("k", "bfloat16", TokenExtent(4, 1, 8)),)
    layout = LayerLayout("a", Role.TARGET, Kind.COMPRESSED_MLA, parts, Storage.PAGED, 100, 4)
    need = requirements_of(layout, Retention(RetentionKind.ALL), (8,))
    assert (need.page_bytes(4), need.page_bytes(8)) == (100, 164)
    assert fitted(layout, 8).page_bytes == 164


def test_rows_that_stand_for_several_tokens_are_counted_once() -> None:
    parts = (Component("latent", "bfloat16", TokenExtent(128, 1, 512)),)
    layout = LayerLayout(
        "a", Role.TARGET, Kind.COMPRESSED_MLA, parts, Storage.PAGED, 131072, tokens_per_block=512
    )
    need = requirements_of(layout, Retention(RetentionKind.ALL, tokens_per_row=4))
    assert (need.block_size, need.page_bytes(128)) == (128, 131072)
    (group,) = plan_pages([need], REQUEST).groups
    assert group.blocks == REQUEST.tokens // 512
    assert fitted_groups({"a": layout}, [group]) == ((layout,),)
