# SPDX-License-Identifier: Apache-2.0
"""The one plan: groups that are planned or given, blocks of a memory, and admission."""

from dataclasses import replace
from typing import Any

import pytest
from pydantic import TypeAdapter
from pydantic_core import to_jsonable_python

from mkv_ascend.commands.plan_report import PlanReport
from mkv_ascend.layout.component import (
    ONE_BLOCK,
    Component,
    Container,
    LayerLayout,
    LayoutError,
    PageShape,
    StateExtent,
    Storage,
    TokenExtent,
)
from mkv_ascend.layout.grouping import Cost, GroupingError
from mkv_ascend.layout.kind import Kind, Role
from mkv_ascend.layout.planning import (
    CachedLayer,
    PlanInputs,
    plan,
    recurrent_table,
)
from mkv_ascend.layout.requirements import Request, Retention, RetentionKind
from tests.support.caches.layouts import keys_and_values, states

REQUEST = Request(1024, 4)
FULL, WINDOW = Retention(RetentionKind.ALL), Retention(RetentionKind.WINDOW, 256)


def inputs(*layers: CachedLayer) -> PlanInputs:
    return PlanInputs(layers, REQUEST, 512)


def dense(name: str, retention: Retention = FULL, role: Role = Role.TARGET) -> CachedLayer:
    """32 KiB a block of 128 tokens."""
    layout = keys_and_values(name, 1, 64, block=128, kernel_block=128, role=role)
    return CachedLayer(layout, retention, f"backend_of_{name}")


def test_layers_that_hold_the_same_share_a_group() -> None:
    planned = plan(inputs(dense("t"), dense("w", WINDOW), dense("d", role=Role.DRAFT)))
    groups = {group.layers for group in planned.grouping.groups}
    assert groups == {("t", "d"), ("w",)}
    assert {group.layers for group in planned.plan.groups} == groups
    assert planned.backends["w"] == "backend_of_w"
    # Two layers of the first group; that of the other has two blocks in these.
    assert planned.plan.bytes_per_block == 2 * 32 * 1024
    assert [group.shape.blocks for group in planned.grouping.groups] == [1, 2]
    assert planned.grouping.cost.page_bytes == planned.plan.bytes_per_block


def test_given_groups_are_kept_and_cost_what_they_hold() -> None:
    layers = (dense("t"), dense("w", WINDOW), dense("d", role=Role.DRAFT))
    planned = plan(replace(inputs(*layers), groups=(("w",), ("d",), ("t",))))
    assert [group.layers for group in planned.plan.groups] == [("w",), ("d",), ("t",)]
    # In decoding: 255 + 4 tokens of the window and one block more, and all tokens twice.
    assert [group.blocks for group in planned.grouping.groups] == [4, 8, 8]
    assert planned.grouping.cost.held_bytes == 20 * 32 * 1024


def test_given_groups_cost_pages_of_what_their_layers_need() -> None:
    layers = (dense("t"), dense("w", WINDOW), dense("d", role=Role.DRAFT))
    grouping = plan(replace(inputs(*layers), groups=(("t", "d"), ("w",)))).grouping
    page = 32 * 1024
    # Eight blocks and four of two pages each; the window's have one page too many.
    assert grouping.cost == Cost(2, 12, 2 * page, (8 + 8 + 4) * page)
    assert [group.has_draft for group in grouping.groups] == [True, False]


def test_a_given_group_holds_what_the_first_of_its_layers_with_the_most_holds() -> None:
    as_many = Retention(RetentionKind.WINDOW, 800)
    few, first, second = dense("a", WINDOW), dense("b"), dense("c", as_many)
    (group,) = plan(replace(inputs(few, first, second), groups=(("a", "b", "c"),))).grouping.groups
    assert [kind.blocks(128, REQUEST) for kind in (WINDOW, FULL, as_many)] == [4, 8, 8]
    assert (group.blocks, group.retention) == (8, FULL)


def split_by(kernel_blocks: int, name: str, numbers: int) -> CachedLayer:
    """Keys and values of so many 16-bit numbers a token, in blocks of kernel blocks of 4 tokens."""
    extent = TokenExtent(4 * kernel_blocks, 1, numbers)
    parts = tuple(Component(part, "bfloat16", extent) for part in ("key", "value"))
    page = sum(part.bytes_per_block for part in parts)
    layout = LayerLayout(
        *(name, Role.TARGET, Kind.FULL_ATTENTION, parts, Storage.PACKED, page, extent.tokens),
        kernel_block=4,
        container=Container.TUPLE,
    )
    return CachedLayer(layout, FULL)


def test_what_a_row_is_rounded_up_to_is_counted() -> None:
    """Blocks of 256 and of 192 bytes, in a row of which 2 and 3 kernel blocks are equal parts."""
    layers = split_by(2, "a", 8), split_by(3, "b", 4)
    planned = plan(replace(inputs(*layers), kv_transfer=True))
    assert [layer.layout.page_bytes for layer in layers] == [256, 192]
    row = planned.plan.bytes_per_block
    assert row == 384
    # 1,024 tokens in blocks of 8 and of 12.
    assert [group.blocks for group in planned.grouping.groups] == [128, 86]
    assert planned.grouping.cost == Cost(2, 214, row, 128 * 256 + 86 * 192)


def test_a_row_holds_blocks_of_packed_pages_as_the_planner_counts_them() -> None:
    """Nine blocks of 32 bytes in the row of one of 288."""
    layers = split_by(1, "a", 18), replace(split_by(1, "b", 2), retention=WINDOW)
    planned = plan(inputs(*layers))
    assert [layer.layout.page_bytes for layer in layers] == [288, 32]
    shapes = {group.layers: group.shape for group in planned.grouping.groups}
    # Keys and values are aligned to 32 bytes each: 320 bytes, and 64.
    assert shapes == {("a",): ONE_BLOCK, ("b",): PageShape(5)}
    assert planned.plan.bytes_per_block == 320


PARTS = keys_and_values("a", 1, 64, block=256, kernel_block=64).components
STATE = Component("state", "bfloat16", StateExtent((8,)))


@pytest.mark.parametrize(
    ("fields", "block_size"),
    [
        ({}, 64),
        ({"kernel_block": None}, 256),
        ({"kind": Kind.COMPRESSED_MLA}, 256),
        ({"components": (*PARTS, STATE), "page_bytes": 256 * 256 + 16}, 256),
    ],
    ids=["attention", "no kernel block", "compressed", "with a state"],
)
def test_only_layers_whose_kernels_split_blocks_get_others(
    fields: dict[str, Any], block_size: int
) -> None:
    """Three blocks of 64 tokens hold a window of 128, two of 256 hold more than twice as much."""
    layout = keys_and_values("a", 1, 64, block=256, kernel_block=64)
    layout = replace(layout, **fields)
    window = CachedLayer(layout, Retention(RetentionKind.WINDOW, 128))
    planned = plan(inputs(window))
    (group,) = planned.grouping.groups
    assert group.block_size == block_size


def test_layers_keep_their_blocks_beside_kv_transfer() -> None:
    """Connectors count blocks of one size; kernels would take smaller ones."""
    layout = keys_and_values("a", 1, 64, block=256, kernel_block=64)
    window = CachedLayer(layout, Retention(RetentionKind.WINDOW, 128))
    given = inputs(window, CachedLayer(replace(layout, layer="b"), FULL))
    for transfer, sizes in ((False, {256, 64}), (True, {256})):
        found = plan(replace(given, kv_transfer=transfer)).grouping.groups
        assert {group.block_size for group in found} == sizes


def test_pages_that_groups_share_keep_to_the_hash() -> None:
    """Windows get the smaller blocks of their kernels that it divides."""
    layouts = [
        keys_and_values("a", 2, 64, block=256, kernel_block=64),
        keys_and_values("b", 1, 64, block=256, kernel_block=64),
    ]
    given = inputs(CachedLayer(layouts[0], FULL), CachedLayer(layouts[1], WINDOW))
    block_sizes = []
    for hashed in (None, 128):
        planned = plan(replace(given, hash_block_size=hashed))
        grouping = planned.grouping
        assert max(group.shape.blocks for group in grouping.groups) > 1
        assert grouping.cost.page_bytes == planned.plan.bytes_per_block
        block_sizes.append([group.block_size for group in grouping.groups])
    assert block_sizes == [[256, 64], [256, 128]]
    with pytest.raises(GroupingError, match="hash_block_size 96"):
        plan(replace(given, hash_block_size=96))


@pytest.mark.parametrize("why", [{"kv_transfer": True}, {"shared_pages": False}], ids=str)
def test_a_page_is_a_block_for_connectors_and_where_that_is_asked_for(why: dict[str, bool]) -> None:
    given = inputs(dense("t"), dense("w", WINDOW), dense("d", role=Role.DRAFT))
    grouping = plan(replace(given, **why)).grouping
    assert {group.shape for group in grouping.groups} == {ONE_BLOCK}
    assert {group.block_size for group in grouping.groups} == {128}


def test_layers_of_which_each_rank_keeps_all_keys_keep_their_blocks() -> None:
    """A block of theirs has the tokens of as many blocks as there are ranks."""
    whole = keys_and_values("a", 1, 64, block=512, kernel_block=512)
    whole = replace(whole, tokens_per_block=256)
    share = keys_and_values("b", 1, 64, block=512, kernel_block=512)
    layers = CachedLayer(whole, FULL), CachedLayer(share, FULL)
    planned = plan(inputs(*layers))
    sizes = {group.layers: group.block_size for group in planned.grouping.groups}
    assert sizes == {("a",): 256, ("b",): 512}


def test_a_given_group_of_rows_that_do_not_fill_a_block_is_refused_by_its_layer() -> None:
    rows = dense("t", Retention(RetentionKind.ALL, tokens_per_row=3))
    with pytest.raises(LayoutError, match=r"layer t: tokens .* of a row: 128 is not a multiple"):
        plan(replace(inputs(rows), groups=(("t",),)))


def test_layers_without_a_cache_read_that_of_their_owner() -> None:
    planned = plan(replace(inputs(dense("t")), aliases=(("reader", "t"),)))
    assert planned.plan.aliases == (("reader", "t"),)
    assert [group.layers for group in planned.plan.groups] == [("t",)]


def test_requests_at_once_are_none_without_a_block_and_whole_with_one_each() -> None:
    one = Retention(RetentionKind.STATE, 1)
    planned = plan(inputs(CachedLayer(states("a", (3, 64), (8, 16, 16)), one)))
    assert planned.admission_pages == (1,)
    assert [planned.max_concurrency(blocks) for blocks in (0, 1, 3)] == [0.0, 0.0, 2.0]


def test_many_requests_fill_each_others_pages() -> None:
    """One alone holds two pages of the window's group, and a part of the second one."""
    given = inputs(dense("t"), dense("w", WINDOW))
    shapes = (ONE_BLOCK, PageShape(3, 2))
    planned = plan(replace(given, groups=(("t",), ("w",)), shapes=shapes))
    assert planned.admission_pages == (8, 2)
    assert planned.max_concurrency(1 + 39) == 39 / (8 + 7 / 6)
    report = PlanReport((), planned, 40 * planned.plan.bytes_per_block)
    assert report.request_blocks == 8 + 1
    assert report.max_concurrency == 39 / (8 + 4 / 6)


def test_admission_counts_steps_of_the_scheduler() -> None:
    planned = plan(replace(inputs(dense("t"), dense("w", WINDOW)), groups=(("t",), ("w",))))
    # 255 + 512 tokens of the window, and one block more.
    assert planned.admission_pages == (8, 7)
    assert planned.num_blocks(16 * 32 * 1024 + 1) == 16
    assert planned.max_concurrency(16) == 1.0
    assert planned.refusal(16) is None
    refused = planned.refusal(15)
    assert refused is not None
    assert "one request of 1024 tokens needs 16 blocks" in refused


def test_a_plan_is_shortened_to_the_longest_request_that_blocks_admit() -> None:
    planned = plan(replace(inputs(dense("t"), dense("w", WINDOW)), groups=(("t",), ("w",))))
    # Of 12 blocks one is vLLM's own; the window holds one more than 640 tokens fill.
    for blocks, tokens in ((16, 1024), (12, 5 * 128), (4, 128)):
        cut = planned.shortened(blocks)
        assert cut is not None
        assert cut == replace(planned, inputs=replace(planned.inputs, request=Request(tokens, 4)))
        assert cut.refusal(blocks) is None
        assert cut.refusal(blocks - 1) is not None
    assert planned.shortened(3) is None


def test_states_of_unequal_tables_have_groups_of_their_own() -> None:
    one = Retention(RetentionKind.STATE, 1)
    first, second = states("a", (3, 64), (8, 16, 16)), states("b", (3, 64), (8, 16, 16))
    layers = [CachedLayer(first, one, table="x"), CachedLayer(second, one, table="x")]
    assert len(plan(inputs(*layers)).grouping.groups) == 1
    layers[1] = replace(layers[1], table="y")
    assert len(plan(inputs(*layers)).grouping.groups) == 2
    assert recurrent_table(first, "mamba2") == recurrent_table(second, "mamba2")
    assert recurrent_table(first, "mamba2") != recurrent_table(first, "gdn")


def test_transfer_takes_its_alignment_off_the_memory() -> None:
    given = replace(inputs(dense("t")), kv_transfer=True)
    memory = 100 * 32 * 1024
    assert plan(inputs(dense("t"))).num_blocks(memory) == 100
    planned = plan(given)
    # Keys and values are a buffer each.
    assert planned.num_blocks(memory + 2 * 2 * 1024 * 1024) == 100
    assert planned.num_blocks(memory + 2 * 2 * 1024 * 1024 - 1) == 99


def test_inputs_are_sent_from_process_to_process() -> None:
    given = inputs(
        dense("t"),
        CachedLayer(states("s", (3, 64), (8, 16, 16)), Retention(RetentionKind.STATE, 1)),
    )
    given = replace(given, hash_block_size=64, groups=(("t", "s"),))
    assert TypeAdapter(PlanInputs).validate_python(to_jsonable_python(given)) == given
