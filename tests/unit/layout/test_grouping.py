# SPDX-License-Identifier: Apache-2.0
"""Grouping: properties of every result, and the search beside plain enumeration."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from mkv_ascend.layout.grouping import (
    Grouping,
    GroupingError,
    GroupingOptions,
    _by_type,
    group_layers,
)
from mkv_ascend.layout.kind import Kind, Role
from mkv_ascend.layout.objective import Cost, Objective
from mkv_ascend.layout.requirements import (
    LayerRequirements,
    block_of_kernels,
    block_size_choices,
)
from mkv_ascend.layout.retention import Request, Retention, RetentionKind
from mkv_ascend.layout.search import NODE_LIMIT, _Search, search
from mkv_ascend.layout.search_options import Bundle, Choices, LayerType

REQUEST = Request(tokens=1024, tokens_per_step=4)
HOLDINGS = (
    Retention(RetentionKind.ALL),
    Retention(RetentionKind.WINDOW, 64),
    Retention(RetentionKind.STATE, 1),
)


def layer(
    name: str,
    *,
    role: Role = Role.TARGET,
    retention: Retention = HOLDINGS[0],
    rows: tuple[int, ...] = (2, 2),
    states: tuple[int, ...] = (),
    sizes: tuple[int, ...] = (16, 32),
    strides: bool = False,
    table: str = "",
) -> LayerRequirements:
    kind = Kind.MAMBA if states else Kind.FULL_ATTENTION
    return LayerRequirements(name, role, kind, retention, sizes, rows, states, strides, table=table)


@st.composite
def models(draw: st.DrawFn, max_layers: int = 8) -> list[LayerRequirements]:
    """A target and a draft of a few kinds of layer."""
    layers = []
    for index in range(draw(st.integers(1, max_layers))):
        retention = draw(st.sampled_from(HOLDINGS))
        name, role = f"layer.{index}", draw(st.sampled_from(list(Role)))
        if retention.kind is RetentionKind.STATE:
            states = draw(st.sampled_from([(64,), (128,), (64, 32)]))
            like = {"retention": retention, "rows": (), "sizes": (16,), "table": str(states)}
            layers.append(layer(name, role=role, states=states, **like))
        else:
            rows = draw(st.sampled_from([(2, 2), (4, 4), (8, 8), (8, 1)]))
            strides = draw(st.booleans())
            layers.append(layer(name, role=role, retention=retention, rows=rows, strides=strides))
    return layers


objectives = st.sampled_from(list(Objective))


def planes_of(members: Sequence[LayerRequirements], size: int) -> Counter[tuple[int, bool]]:
    """Planes that a group needs; pages as a whole where the operators take strides."""
    planes: Counter[tuple[int, bool]] = Counter()
    for need in members:
        parts = need.component_bytes(size)
        planes.update([(sum(parts), True)] if need.takes_strides else [(p, False) for p in parts])
    return planes


def held_bytes(grouping: Grouping, layers: Sequence[LayerRequirements]) -> int:
    """Bytes of one request, counted anew from the groups alone."""
    requirements_of = {need.name: need for need in layers}
    planes: Counter[tuple[int, bool]] = Counter()
    for group in grouping.groups:
        planes |= planes_of([requirements_of[name] for name in group.layers], group.block_size)
    block = sum(size * count for (size, _), count in planes.items())
    assert block == grouping.block_bytes
    return block * sum(group.blocks for group in grouping.groups)


@given(layers=models(), objective=objectives)
def test_every_group_can_share_one_block_table(
    layers: list[LayerRequirements], objective: Objective
) -> None:
    grouping = group_layers(layers, REQUEST, GroupingOptions(objective))
    requirements_of = {need.name: need for need in layers}
    assert sorted(name for group in grouping.groups for name in group.layers) == sorted(
        requirements_of
    )
    for group in grouping.groups:
        members = [requirements_of[name] for name in group.layers]
        assert {need.retention for need in members} == {group.retention}
        assert len({need.table for need in members}) == 1
        assert all(group.block_size in need.block_sizes for need in members)
        assert group.blocks == group.retention.blocks(group.block_size, REQUEST)
        assert group.has_draft == any(need.role is Role.DRAFT for need in members)
        roles = [need.role for need in members]
        assert roles == sorted(roles, key=lambda role: role is Role.DRAFT), "a target layer first"


@given(layers=models(), objective=objectives)
def test_the_cost_is_that_of_the_groups(
    layers: list[LayerRequirements], objective: Objective
) -> None:
    grouping = group_layers(layers, REQUEST, GroupingOptions(objective))
    assert grouping.cost.groups == len(grouping.groups)
    assert grouping.cost.held_bytes == held_bytes(grouping, layers)
    assert grouping.cost in grouping.alternatives
    other = group_layers(layers, REQUEST, GroupingOptions(grouping.other_objective))
    assert other.cost == grouping.other_cost
    if objective is not Objective.FEWEST_GROUPS:
        assert other.other_cost == grouping.cost


@given(layers=models(), objective=objectives, seed=st.randoms(use_true_random=False))
def test_the_order_of_layers_changes_no_cost_and_a_second_run_changes_nothing(
    layers: list[LayerRequirements], objective: Objective, seed
) -> None:
    options = GroupingOptions(objective)
    grouping = group_layers(layers, REQUEST, options)
    assert group_layers(list(layers), REQUEST, options) == grouping
    shuffled = list(layers)
    seed.shuffle(shuffled)
    assert group_layers(shuffled, REQUEST, options).alternatives == grouping.alternatives


def partitions(items: list[int]) -> Iterator[list[list[int]]]:
    if not items:
        yield []
        return
    for rest in partitions(items[1:]):
        yield [[items[0]], *rest]
        for index in range(len(rest)):
            yield [*rest[:index], [items[0], *rest[index]], *rest[index + 1 :]]


def block_bytes_of(groups: list[list[LayerRequirements]], sizes: tuple[int, ...]) -> int:
    planes: Counter[tuple[int, bool]] = Counter()
    for members, size in zip(groups, sizes, strict=True):
        planes |= planes_of(members, size)
    return sum(part * count for (part, _), count in planes.items())


def enumerate_all(layers: list[LayerRequirements]) -> dict[int, int]:
    """Least bytes for each number of groups, over every way to group and every block size.

    Layers that are alike have blocks of equal size, as in the search.
    """
    best: dict[int, int] = {}
    for parts in partitions(list(range(len(layers)))):
        groups = [[layers[index] for index in part] for part in parts]
        if any(len({(need.retention, need.table) for need in members}) > 1 for members in groups):
            continue
        for sizes in product(*(members[0].block_sizes for members in groups)):
            size_of: dict[object, set[int]] = {}
            for members, size in zip(groups, sizes, strict=True):
                for need in members:
                    size_of.setdefault(replace(need, name="", role=Role.TARGET), set()).add(size)
            allowed = all(
                size in need.block_sizes
                for members, size in zip(groups, sizes, strict=True)
                for need in members
            )
            if not allowed or any(len(used) > 1 for used in size_of.values()):
                continue
            blocks = sum(
                members[0].retention.blocks(size, REQUEST)
                for members, size in zip(groups, sizes, strict=True)
            )
            held = blocks * block_bytes_of(groups, sizes)
            best[len(groups)] = min(held, best.get(len(groups), held))
    return best


ALL_SIZES = GroupingOptions(Objective.LEAST_MEMORY, max_block_size=64)


@settings(max_examples=60)
@given(
    counts=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    rows=st.tuples(st.sampled_from([2, 4]), st.sampled_from([2, 4, 8])),
    strides=st.booleans(),
)
def test_the_search_finds_what_enumerating_every_grouping_finds(
    counts: tuple[int, int], rows: tuple[int, int], strides: bool
) -> None:
    assume(sum(counts))
    layers = [
        layer(f"{kind}.{index}", retention=HOLDINGS[kind], rows=(row, row), strides=strides)
        for kind, (count, row) in enumerate(zip(counts, rows, strict=True))
        for index in range(count)
    ]
    best = enumerate_all(layers)
    grouping = group_layers(layers, REQUEST, ALL_SIZES)
    for cost in grouping.alternatives:
        assert cost.held_bytes == min(
            held for groups, held in best.items() if groups <= cost.groups
        )
    assert grouping.cost.held_bytes == min(best.values())
    assert grouping.exhaustive
    assert grouping.gap == 0


@settings(max_examples=80, deadline=None)
@given(layers=models(max_layers=6), node_limit=st.sampled_from([1, 2, 3, 1000]))
def test_no_bound_is_above_what_enumerating_every_grouping_finds(
    layers: list[LayerRequirements], node_limit: int
) -> None:
    """Also of a search that is cut short, and where assigning layers misses the best."""
    best = enumerate_all(layers)
    frontier = search(tuple(_by_type(layers, ALL_SIZES, REQUEST)), REQUEST, node_limit)
    least = min(best.values())
    assert frontier.bound_bytes() <= least <= frontier.candidates[-1].held_bytes
    for candidate in frontier.candidates:
        fewest = min(held for groups, held in best.items() if groups <= candidate.groups)
        assert frontier.bound_bytes(candidate.groups) <= fewest <= candidate.held_bytes
    # Layers of two tables share no group, so that no grouping has fewer than there are tables.
    tables = {(need.retention, need.table) for need in layers}
    assert frontier.bound_bytes(len(tables) - 1) == 0 < frontier.bound_bytes()


@settings(deadline=None)
@given(layers=models(max_layers=6), limit=st.integers(1, 3))
def test_no_bound_is_above_the_best_where_ways_to_put_types_together_are_left_out(
    layers: list[LayerRequirements], limit: int
) -> None:
    best = enumerate_all(layers)
    types = tuple(_by_type(layers, ALL_SIZES, REQUEST))
    ways = sum(1 for _ in Choices(types, REQUEST).partitions())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mkv_ascend.layout.search.PARTITION_LIMIT", limit)
        frontier = search(types, REQUEST)
    assert frontier.exhaustive is (ways <= limit)
    for groups in best:
        fewest = min(held for count, held in best.items() if count <= groups)
        assert frontier.bound_bytes(groups) <= fewest
    for candidate in frontier.candidates:
        fewest = min(held for groups, held in best.items() if groups <= candidate.groups)
        assert fewest <= candidate.held_bytes


def test_what_is_left_out_is_bounded_by_the_heaviest_type_of_each_table() -> None:
    layers = [
        layer("a", rows=(4, 4)),
        layer("b", rows=(8, 1)),
        layer("c", rows=(8, 8)),
        layer("d", retention=HOLDINGS[1], rows=(8, 4)),
        layer("e", retention=HOLDINGS[1], rows=(2, 2)),
    ]
    types = tuple(_by_type(layers, ALL_SIZES, REQUEST))
    chosen = Choices(types, REQUEST).heaviest()
    assert [level.table for level in chosen] == [0, 1]
    for level in chosen:
        assert len({bundle.types for bundle in level.bundles}) == 1
    found = [types[level.bundles[0].types[0]] for level in chosen]
    assert [one.row_bytes for one in found] == [(8, 8), (8, 4)]
    assert [one.retention for one in found] == [HOLDINGS[0], HOLDINGS[1]]


@settings(deadline=None)
@given(layers=models())
def test_a_bound_prunes_nothing_that_is_better(layers: list[LayerRequirements]) -> None:
    """The search beside every combination of its own choices, without a bound.

    Of groupings that hold as much, the one with the most layers at their own block size is best.
    """
    types = tuple(_by_type(layers, ALL_SIZES, REQUEST))
    searched = _Search(Choices(types, REQUEST), NODE_LIMIT)
    frontier = searched.run()
    assert frontier.exhaustive
    found = []
    for candidate in frontier.candidates:
        cost, _ = searched.best[candidate.groups]
        moved = cost - candidate.held_bytes * searched.scale
        found.append((candidate.groups, candidate.held_bytes, moved))
    assert found == unpruned(types)


def unpruned(types: tuple[LayerType, ...]) -> list[tuple[int, int, int]]:
    """Groups, bytes and moved layers of what is best for each number of groups."""
    choices = Choices(types, REQUEST)
    best: dict[int, tuple[int, int]] = {}
    for levels in choices.partitions():
        for options in product(*(range(len(level.bundles)) for level in levels)):
            chosen = list(zip(levels, options, strict=True))
            planes = np.max([level.assigned[option] for level, option in chosen], axis=0)
            blocks = sum(int(level.blocks[option]) for level, option in chosen)
            groups = sum(int(level.splits[option]) for level, option in chosen)
            moved = sum(int(level.moved[option]) for level, option in chosen)
            cost = (int(planes @ choices.weights) * blocks, moved)
            best[groups] = min(cost, best.get(groups, cost))
    fewest = sorted(best)
    return [
        (groups, *best[groups])
        for groups in fewest
        if all(best[fewer][0] > best[groups][0] for fewer in fewest if fewer < groups)
    ]


def test_a_draft_folds_into_the_group_of_the_target() -> None:
    layers = [layer(f"draft.{i}", role=Role.DRAFT, rows=(4, 4)) for i in range(2)]
    layers += [layer(f"model.{i}") for i in range(3)]
    grouping = group_layers(layers, REQUEST)
    assert [group.layers for group in grouping.groups] == [
        ("model.0", "model.1", "model.2", "draft.0", "draft.1")
    ]
    assert grouping.groups[0].has_draft
    assert grouping.cost.padding_fraction == 0


def test_groups_of_the_draft_alone_come_last() -> None:
    layers = [
        layer("draft.0", role=Role.DRAFT, retention=HOLDINGS[1]),
        layer("model.0"),
    ]
    assert [group.layers for group in group_layers(layers, REQUEST).groups] == [
        ("model.0",),
        ("draft.0",),
    ]


def test_a_layer_keeps_its_block_size_where_another_gains_nothing() -> None:
    grouping = group_layers([layer("model.0", sizes=(32, 16, 64))], REQUEST)
    assert grouping.groups[0].block_size == 32


@pytest.mark.parametrize(("rows", "block"), [((8, 8), 256), ((2, 2), 256 + 64)])
def test_strided_pages_share_a_pool_when_they_are_equally_large(
    rows: tuple[int, int], block: int
) -> None:
    first = layer("model.0", rows=(4, 12), sizes=(16,), strides=True)
    second = layer("model.1", rows=rows, sizes=(16,), strides=True, retention=HOLDINGS[1])
    assert group_layers([first, second], REQUEST).block_bytes == block


def test_a_strided_page_and_a_component_of_its_size_share_nothing() -> None:
    page = layer("model.0", rows=(8, 8), sizes=(16,), strides=True)
    part = layer("model.1", rows=(16,), sizes=(16,), retention=HOLDINGS[1])
    assert group_layers([page, part], REQUEST).block_bytes == 256 + 256


def test_layers_of_another_table_never_share_a_group() -> None:
    layers = [layer("model.0"), layer("model.1", table="other")]
    assert [group.layers for group in group_layers(layers, REQUEST).groups] == [
        ("model.0",),
        ("model.1",),
    ]


def test_what_one_type_leaves_over_goes_to_other_groups_than_the_last_types() -> None:
    """Five layers with a window and three with other values, over four groups of two."""
    like = {"retention": HOLDINGS[1], "sizes": (16,)}
    layers = [layer("model.full", rows=(4, 4, 4, 4), sizes=(16,))]
    layers += [layer(f"a.{index}", rows=(4, 4), **like) for index in range(5)]
    layers += [layer(f"b.{index}", rows=(4,), **like) for index in range(3)]
    costs = group_layers(layers, REQUEST).alternatives
    assert [cost.block_bytes for cost in costs if cost.groups == 5] == [4 * 64]


def test_a_limit_that_nothing_keeps_to_is_an_error_with_the_numbers() -> None:
    layers = [layer("model.0", rows=(8, 8)), layer("draft.0", rows=(1, 3), retention=HOLDINGS[1])]
    for objective in Objective:
        best = group_layers(layers, REQUEST, GroupingOptions(objective)).alternatives[-1]
        assert best.padding_fraction > 0.01
        with pytest.raises(GroupingError, match=f"holds {best.held_bytes} bytes") as refused:
            group_layers(layers, REQUEST, GroupingOptions(objective, max_padding_fraction=0.01))
        may_be_coarser = objective is Objective.LEAST_MEMORY
        assert ("layout.max_block_size" in str(refused.value)) != may_be_coarser


def test_a_wider_limit_gives_fewer_groups() -> None:
    layers = [layer(f"model.{i}", retention=HOLDINGS[1], sizes=(16,)) for i in range(6)]
    layers.append(layer("model.full", sizes=(16,)))
    groups = [
        group_layers(layers, REQUEST, GroupingOptions(max_padding_fraction=limit)).cost.groups
        for limit in (1.0, 0.4, 0.2)
    ]
    assert groups == sorted(groups)
    assert groups[0] == 2 < groups[-1]


def test_block_sizes_keep_to_the_hash_and_to_the_largest_allowed() -> None:
    layers = [layer("model.0", sizes=(32, 16, 64, 128)), layer("model.1", sizes=(16, 64))]
    options = GroupingOptions(hash_block_size=32, max_block_size=64)
    assert {group.block_size for group in group_layers(layers, REQUEST, options).groups} <= {32, 64}
    with pytest.raises(GroupingError, match="none is a multiple of hash_block_size 48"):
        group_layers(layers, REQUEST, GroupingOptions(hash_block_size=48))


@pytest.mark.parametrize(
    ("tokens", "own", "asked", "largest"),
    [
        (65536, (128, 128), None, 2048),
        (65536, (2048, 128), None, 4096),
        (8191, (128,), None, 511),
        (1024, (128,), None, 64),
        (1024, (128,), 256, 256),
    ],
)
def test_larger_blocks_are_tried_for_long_requests(
    tokens: int, own: tuple[int, ...], asked: int | None, largest: int
) -> None:
    options = GroupingOptions(max_block_size=asked)
    assert options.largest_block_size(own, Request(tokens)) == largest


def test_the_block_of_a_state_makes_no_other_block_larger() -> None:
    """It is one state, however many tokens the spec counts in it: here those of the longest."""
    sizes = (128, 256, 512, 1024, 2048, 4096)
    like = {"retention": HOLDINGS[2], "rows": (), "states": (64,)}
    layers = [layer("a", sizes=(65536,), **like), layer("b", sizes=sizes)]
    options = GroupingOptions(Objective.LEAST_MEMORY)
    kinds = _by_type(layers, options, Request(65536))
    assert [kind.block_sizes for kind in kinds] == [(65536,), (128, 256, 512, 1024, 2048)]


def test_layers_without_a_common_block_size_get_groups_of_their_own() -> None:
    grouping = group_layers([layer("a", sizes=(16,)), layer("b", sizes=(24,))], REQUEST)
    assert [group.block_size for group in grouping.groups] == [16, 24]
    assert grouping.prefix_hit_tokens == 48


def test_names_must_differ_and_no_layers_are_no_groups() -> None:
    with pytest.raises(GroupingError, match="two layers are named 'a'"):
        group_layers([layer("a"), layer("a")], REQUEST)
    nothing = group_layers([], REQUEST)
    assert (nothing.groups, nothing.cost, nothing.other_cost) == ((), Cost(0, 0, 0), Cost(0, 0, 0))
    assert (nothing.alternatives, nothing.coarser, nothing.nodes) == ((), None, 0)
    assert nothing.exhaustive is True
    assert (nothing.block_bytes, nothing.gap, nothing.prefix_hit_tokens) == (0, 0.0, 1)
    with pytest.raises(GroupingError, match=r"max_padding_fraction is 1\.5"):
        GroupingOptions(max_padding_fraction=1.5)


def test_layers_that_share_planes_are_assigned_by_load() -> None:
    """81 planes in 9 groups of 9; round-robin one of them would have 10."""
    like = {"retention": HOLDINGS[1], "sizes": (16,)}
    layers = [layer(f"two.{index}", rows=(4, 4), **like) for index in range(10)]
    layers += [layer(f"one.{index}", rows=(4,), **like) for index in range(61)]
    costs = group_layers(layers, REQUEST).alternatives
    assert [cost.block_bytes for cost in costs] == [81 * 64]
    (types,) = (tuple(_by_type(layers, GroupingOptions(), REQUEST)),)
    bundles = [
        bundle
        for level in next(Choices(types, REQUEST).partitions())
        for bundle in level.bundles
        if bundle.splits == 9
    ]
    (bundle,) = bundles
    places = bundle.group_of_layers(types)
    planes = [2 * places[0].count(group) + places[1].count(group) for group in range(9)]
    assert planes == [9] * 9


@given(
    rows=st.lists(
        st.tuples(st.lists(st.sampled_from((2, 4, 8)), min_size=1, max_size=3), st.integers(1, 25)),
        min_size=1,
        max_size=3,
    ),
    splits=st.integers(1, 7),
)
def test_each_layer_goes_where_the_largest_group_grows_least(
    rows: list[tuple[list[int], int]], splits: int
) -> None:
    """As plain loops over layers and groups, which start from empty groups."""
    types = [
        LayerType(HOLDINGS[0], (16,), tuple(row_bytes), (), False, None, count)
        for row_bytes, count in rows
    ]
    bundle = Bundle(tuple(range(len(types))), 16, splits, by_load=True)
    held: list[Counter[tuple[int, int]]] = [Counter() for _ in range(splits)]
    expected = []
    for member in types:
        need, groups = member.planes(16), []
        for _ in range(member.count):
            most = {plane: max(group[plane] for group in held) for plane in need}
            growth = [
                sum(max(0, group[plane] + n - most[plane]) * plane[0] for plane, n in need.items())
                for group in held
            ]
            chosen = min(range(splits), key=lambda g: (growth[g], groups.count(g), g))
            held[chosen].update(need)
            groups.append(chosen)
        expected.append(groups)
    assert bundle.group_of_layers(types) == expected


def test_a_request_that_cannot_be_counted_is_refused_with_what_to_change() -> None:
    layers = [layer("model.0"), layer("model.1", retention=HOLDINGS[1], rows=(4, 4))]
    assert group_layers(layers, Request(10**9)).cost.groups
    with pytest.raises(
        GroupingError, match=r"request of 10+ tokens are too large .* max_model_len"
    ):
        group_layers(layers, Request(10**30))


def test_no_layers_are_no_groupings() -> None:
    assert search((), REQUEST).candidates == ()
    with pytest.raises(ValueError, match="a layer type without layers"):
        search((LayerType(HOLDINGS[0], (16,), (2,), (), False, None, 0),), REQUEST)


def test_one_token_is_the_smallest_block() -> None:
    """Of states, for instance, whose block is one of them."""
    options = GroupingOptions(max_block_size=1)
    (group,) = group_layers([layer("a", sizes=(1, 2))], REQUEST, options).groups
    assert group.block_size == 1
    with pytest.raises(GroupingError, match="max_block_size is 0; allowed: 1 or more"):
        GroupingOptions(max_block_size=0)
    with pytest.raises(ValueError, match="at least one positive block size"):
        layer("a", sizes=(1, 0))


def test_choices_of_block_sizes() -> None:
    assert block_size_choices(128, 128, 512) == (128, 256, 512)
    assert block_size_choices(1024, 128, 1024) == (1024, 128, 256, 512)
    with pytest.raises(ValueError, match="choose a multiple of 128"):
        block_size_choices(64, 128, 512)


@pytest.mark.parametrize(
    ("own", "kernels", "block"),
    [(32, (128,), 128), (384, (128,), 384), (64, (128, 64), 64), (96, (128, 64), 192)],
)
def test_blocks_are_no_larger_than_kernels_need(
    own: int, kernels: tuple[int, ...], block: int
) -> None:
    assert block_of_kernels(own, kernels) == block


@pytest.mark.parametrize(
    ("change", "text"), [({"sizes": ()}, "block_sizes"), ({"rows": ()}, "at least one component")]
)
def test_a_layer_that_says_nothing_is_refused(
    change: dict[str, tuple[int, ...]], text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        layer("a", **change)
