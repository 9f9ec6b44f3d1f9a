# SPDX-License-Identifier: Apache-2.0
"""How coarse prefix hits may become: as vLLM makes them for the target alone, unless asked for."""

from __future__ import annotations

from typing import Any

import pytest

from mkv_ascend.layout.grouping import LEAST_GAIN, GroupingOptions, _by_type, group_layers
from mkv_ascend.layout.kind import Kind, Role
from mkv_ascend.layout.objective import Objective
from mkv_ascend.layout.requirements import LayerRequirements
from mkv_ascend.layout.retention import Request, Retention, RetentionKind

REQUEST = Request(tokens=1024, tokens_per_step=4)
ALL, WINDOW = Retention(RetentionKind.ALL), Retention(RetentionKind.WINDOW, 64)
FEWER = Retention(RetentionKind.ALL, tokens_per_row=4)
SIZES = (16, 32, 48, 64)


def layer(
    name: str, row: int, retention: Retention = ALL, sizes: tuple[int, ...] = SIZES, **fields: Any
) -> LayerRequirements:
    """Keys and values of ``row`` bytes a token each; of the target where its name is "t..."."""
    role = Role.TARGET if name.startswith("t") else Role.DRAFT
    return LayerRequirements(
        name, role, Kind.FULL_ATTENTION, retention, sizes, row_bytes=(row, row), **fields
    )


def state(name: str) -> LayerRequirements:
    """A state as large as a page of 16 tokens with 4 bytes each for key and value."""
    one = Retention(RetentionKind.STATE, 1)
    return LayerRequirements(name, Role.TARGET, Kind.MAMBA, one, (1024,), state_bytes=(128,))


@pytest.mark.parametrize(
    ("layers", "hits"),
    [
        # One group, whatever the sizes of pages: blocks as they are.
        ([layer("t0", 2), layer("t1", 4)], 16),
        # Two groups: vLLM doubles the blocks of the smaller pages.
        ([layer("t0", 2), layer("t1", 4, WINDOW)], 32),
        ([layer("t0", 2), layer("t1", 4, WINDOW), layer("t2", 8, WINDOW)], 64),
        # Pages that do not divide the largest: vLLM has no larger blocks for them.
        ([layer("t0", 4), layer("t1", 6, WINDOW)], 16),
        ([layer("t0", 4), layer("t1", 6, WINDOW), layer("t2", 12, WINDOW)], 96),
        # Blocks of their own: the hits are multiples of all.
        ([layer("t0", 2), layer("t1", 4, sizes=(48, 16, 32, 64))], 48),
        # A row that stands for several tokens: a hit ends where a block of it does.
        ([layer("t0", 2, FEWER), layer("t1", 4, WINDOW)], 64),
        # Beside states, as large as the largest page, nothing becomes larger.
        ([layer("t0", 2), layer("t1", 4, WINDOW), state("t2")], 16),
        ([layer("t0", 2), state("t2")], 16),
        # What a draft holds has no say in it, beside a target.
        ([layer("t0", 2), layer("d0", 4, WINDOW)], 16),
        ([layer("t0", 2), layer("d0", 4, sizes=(64, 16, 32, 48))], 16),
        ([layer("t0", 2), layer("t1", 4, WINDOW), layer("d0", 2), layer("d1", 2)], 32),
        # A draft alone is served as a target is.
        ([layer("d0", 2), layer("d1", 4, WINDOW)], 32),
    ],
)
def test_blocks_become_no_larger_than_what_hits_are_multiples_of(
    layers: list[LayerRequirements], hits: int
) -> None:
    for objective in (Objective.BALANCED, Objective.FEWEST_GROUPS):
        kinds = _by_type(layers, GroupingOptions(objective), REQUEST)
        for kind, members in kinds.items():
            own = members[0].block_size
            may = {size for size in members[0].block_sizes if hits % size == 0}
            assert set(kind.block_sizes) == ({own} if not kind.row_bytes else {own, *may})


def test_hits_end_where_a_block_of_compressed_keys_does() -> None:
    found = group_layers([layer("t0", 2, FEWER, (16,)), layer("d0", 2, sizes=(32,))], REQUEST)
    assert {group.block_size for group in found.groups} == {16, 32}
    assert found.prefix_hit_tokens == 64


def test_a_hash_makes_hits_coarser() -> None:
    """vLLM rounds hits to it, so larger blocks that divide it cost nothing."""
    layers = [layer("t0", 2), layer("d0", 4, WINDOW)]
    (first, second) = _by_type(layers, GroupingOptions(hash_block_size=16), REQUEST)
    assert first.block_sizes == second.block_sizes == (16,)
    layers = [layer("t0", 2, sizes=(32, 16, 48, 64, 96)), layer("d0", 4, WINDOW, sizes=(16, 48))]
    (first, second) = _by_type(layers, GroupingOptions(hash_block_size=48), REQUEST)
    assert first.block_sizes == (48,)
    assert second.block_sizes == (48,)


FOUR = [layer(f"t{index}", 4, WINDOW, (16, 32, 64)) for index in range(3)]
FOUR.append(layer("d0", 16, sizes=(16, 32, 64)))


def packed_layers() -> list[LayerRequirements]:
    """Eight pages of three sizes: the fewest groups hold more than pages that vLLM pads."""
    wider, fields = Retention(RetentionKind.WINDOW, 256), {"takes_strides": True, "is_packed": True}
    found = [layer(f"t{i}", 128, wider, (16, 32, 64), **fields) for i in range(3)]
    found += [layer(f"d{i}", 48, WINDOW, (32, 64), **fields) for i in range(4)]
    return [*found, layer("d4", 24, WINDOW, (32, 64), **fields)]


@pytest.mark.parametrize(
    ("layers", "limit"),
    [
        (FOUR, None),
        # Beyond the limit four groups would hold less, with blocks that are as large.
        (FOUR, 0.5),
        (packed_layers(), None),
    ],
)
def test_what_coarser_hits_are_worth_is_what_the_option_then_gives(
    layers: list[LayerRequirements], limit: float | None
) -> None:
    options = GroupingOptions(max_padding_fraction=limit)
    coarser = group_layers(layers, REQUEST, options).coarser
    assert coarser is not None
    largest = coarser.max_block_size
    asked = GroupingOptions(max_padding_fraction=limit, max_block_size=largest)
    assert group_layers(layers, REQUEST, asked).cost == coarser.cost


def test_what_larger_blocks_save_beyond_the_limit_of_padding_is_not_named() -> None:
    """Three groups of coarser blocks hold less than the two that are within the limit."""
    layers = [layer("t0", 2, WINDOW), *(layer(f"t{i}", 4, sizes=(16, 32, 64)) for i in (1, 2))]
    limit = 0.2
    grouping = group_layers(layers, REQUEST, GroupingOptions(max_padding_fraction=limit))
    unlimited = group_layers(layers, REQUEST, GroupingOptions(max_block_size=64)).cost
    assert (grouping.cost.groups, unlimited.groups) == (2, 3)
    assert unlimited.price < grouping.cost.price * (1 - LEAST_GAIN)
    assert grouping.coarser is None
    for size in (32, 64):
        asked = GroupingOptions(max_padding_fraction=limit, max_block_size=size)
        assert group_layers(layers, REQUEST, asked).cost == grouping.cost
