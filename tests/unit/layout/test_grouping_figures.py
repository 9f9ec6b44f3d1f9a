# SPDX-License-Identifier: Apache-2.0
"""The figures that grouping is held to, for pairs of public models."""

from __future__ import annotations

import pytest

from benchmarks.kv_layout import plan
from benchmarks.models import load_pair
from benchmarks.rows import REQUEST, ROWS, Row, whole_mib
from mkv_ascend.layout.grouping import GroupingOptions, group_layers
from mkv_ascend.layout.kind import Role
from mkv_ascend.layout.objective import Objective
from mkv_ascend.layout.retention import Request

MORE_THAN_VLLM = {"LFM2-1.2B + LFM2-350M": 795}
"""vLLM pads a state of 8 KiB to the page of attention, which operators of contiguous components do
not take; vllm-ascend refuses the target."""

every_row = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)


@every_row
def test_what_a_request_needs_is_the_ideal(row: Row) -> None:
    needs = load_pair(row.target, row.draft).needs()
    assert whole_mib(sum(need.needed_bytes(REQUEST) for need in needs)) == row.ideal_mib


@every_row
def test_no_more_groups_than_folding_gives(row: Row) -> None:
    cost, _ = plan(row, Objective.FEWEST_GROUPS)
    assert cost.groups <= row.goal.groups


@every_row
def test_no_more_memory_than_folding_or_vllm_gives(row: Row) -> None:
    cost, _ = plan(row, Objective.LEAST_MEMORY)
    assert whole_mib(cost.held_bytes) <= MORE_THAN_VLLM.get(row.name, row.goal.mib)


@every_row
def test_no_group_has_blocks_that_kernels_or_hashing_refuse(row: Row) -> None:
    grouping = group_layers(load_pair(row.target, row.draft).needs(), REQUEST)
    sizes = [group.block_size for group in grouping.groups]
    assert all(size % 128 == 0 for size in sizes)
    assert grouping.prefix_hit_tokens == max(sizes), "no coarser than the largest block"


@every_row
def test_planning_is_quick_enough_for_a_start_up(row: Row) -> None:
    """A node takes some 0.3 ms; with most, all rows are proven best."""
    needs = load_pair(row.target, row.draft).needs()
    for objective in Objective:
        grouping = group_layers(needs, REQUEST, GroupingOptions(objective))
        assert grouping.exhaustive
        assert grouping.gap == 0
        assert grouping.nodes <= 200


def test_a_search_that_is_cut_short_says_so_with_the_gap() -> None:
    needs = load_pair("gemma-3-27b", "gemma-3-1b").needs()
    whole = group_layers(needs, REQUEST, GroupingOptions(Objective.LEAST_MEMORY))
    assert whole.exhaustive
    assert whole.gap == 0
    cut = group_layers(needs, REQUEST, GroupingOptions(Objective.LEAST_MEMORY, node_limit=3))
    assert not cut.exhaustive
    assert 0 <= cut.gap < 0.2
    assert cut.bound_bytes <= whole.cost.held_bytes <= cut.cost.held_bytes


@every_row
def test_hits_are_as_fine_as_without_the_draft_unless_asked_for(row: Row) -> None:
    pair = load_pair(row.target, row.draft)
    target = [layer for layer in pair.needs() if layer.role is Role.TARGET and layer.row_bytes]
    for objective in (Objective.BALANCED, Objective.FEWEST_GROUPS):
        grouping = group_layers(pair.needs(), REQUEST, GroupingOptions(objective))
        assert grouping.prefix_hit_tokens == max(need.block_size for need in target)


def test_what_coarser_hits_are_worth_is_named_and_what_the_option_gives() -> None:
    needs = load_pair("Llama-3.1-8B", "gemma-3-1b").needs()
    grouping = group_layers(needs, REQUEST)
    assert grouping.coarser is not None
    assert grouping.coarser.max_block_size == 512
    asked = group_layers(needs, REQUEST, GroupingOptions(max_block_size=512))
    assert asked.cost == grouping.coarser.cost
    assert asked.prefix_hit_tokens == 512
    assert asked.coarser is None
    assert "layout.max_block_size: 512" in str(grouping.coarser)
    uncached = group_layers(needs, REQUEST, GroupingOptions(prefix_caching=False))
    assert uncached.cost.held_bytes < grouping.cost.held_bytes


@pytest.mark.parametrize("tokens", [1, 300, 4096, 131072])
def test_other_lengths_are_planned_as_well(tokens: int) -> None:
    needs = load_pair("gemma-3-27b", "gemma-3-1b").needs()
    for objective in Objective:
        grouping = group_layers(needs, Request(tokens, 4), GroupingOptions(objective))
        assert sum(len(group.layers) for group in grouping.groups) == 62 + 26
