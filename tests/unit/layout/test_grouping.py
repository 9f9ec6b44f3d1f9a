# SPDX-License-Identifier: Apache-2.0
"""Grouping: properties of every result, and the search beside plain enumeration."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import product

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from mkv_ascend.layout.demand import Holding, Request, Span
from mkv_ascend.layout.grouping import (
    Grouping,
    GroupingError,
    GroupingOptions,
    Objective,
    group_layers,
)
from mkv_ascend.layout.kind import Kind, Role
from mkv_ascend.layout.needs import LayerNeed, block_size_choices
from mkv_ascend.layout.search import search

REQUEST = Request(tokens=1024, tokens_per_step=4)
HOLDINGS = (Holding(Span.ALL), Holding(Span.WINDOW, 64), Holding(Span.STATE, 1))


def layer(
    name: str,
    *,
    role: Role = Role.TARGET,
    holding: Holding = HOLDINGS[0],
    rows: tuple[int, ...] = (2, 2),
    states: tuple[int, ...] = (),
    sizes: tuple[int, ...] = (16, 32),
    strides: bool = False,
    scaled: bool = False,
) -> LayerNeed:
    kind = Kind.MAMBA if states else Kind.FULL_ATTENTION
    return LayerNeed(name, role, kind, holding, sizes, rows, states, strides, scaled)


@st.composite
def models(draw: st.DrawFn, max_layers: int = 8) -> list[LayerNeed]:
    """A target and a draft of a few kinds of layer."""
    layers = []
    for index in range(draw(st.integers(1, max_layers))):
        holding = draw(st.sampled_from(HOLDINGS))
        name, role = f"layer.{index}", draw(st.sampled_from(list(Role)))
        if holding.span is Span.STATE:
            states = draw(st.sampled_from([(64,), (128,), (64, 32)]))
            scaled = draw(st.booleans())
            layers.append(
                layer(
                    name,
                    role=role,
                    holding=holding,
                    rows=(),
                    states=states,
                    sizes=(16,),
                    scaled=scaled,
                )
            )
        else:
            rows = draw(st.sampled_from([(2, 2), (4, 4), (8, 8), (8, 1)]))
            strides = draw(st.booleans())
            layers.append(layer(name, role=role, holding=holding, rows=rows, strides=strides))
    return layers


objectives = st.sampled_from(list(Objective))


def held_bytes(grouping: Grouping, layers: Sequence[LayerNeed]) -> int:
    """Bytes of one request, counted anew from the groups alone."""
    need_of = {need.name: need for need in layers}
    planes: Counter[int] = Counter()
    paged = 0
    for group in grouping.groups:
        mine: Counter[int] = Counter()
        pages = 0
        for name, scale in zip(group.layers, group.id_scales, strict=True):
            for size in need_of[name].component_bytes(group.block_size):
                if need_of[name].takes_strides:
                    pages += size
                else:
                    mine[size * scale] += 1
        planes |= mine
        paged = max(paged, pages)
    block = sum(size * count for size, count in planes.items()) + paged
    assert block == grouping.block_bytes
    return block * sum(group.blocks for group in grouping.groups)


@given(layers=models(), objective=objectives)
def test_every_group_can_share_one_block_table(
    layers: list[LayerNeed], objective: Objective
) -> None:
    grouping = group_layers(layers, REQUEST, GroupingOptions(objective))
    need_of = {need.name: need for need in layers}
    assert sorted(name for group in grouping.groups for name in group.layers) == sorted(need_of)
    for group in grouping.groups:
        members = [need_of[name] for name in group.layers]
        assert {need.holding for need in members} == {group.holding}
        assert all(group.block_size in need.block_sizes for need in members)
        assert group.blocks == group.holding.blocks(group.block_size, REQUEST)
        assert group.has_draft == any(need.role is Role.DRAFT for need in members)
        roles = [need.role for need in members]
        assert roles == sorted(roles, key=lambda role: role is Role.DRAFT), "a target layer first"
        for need, scale in zip(members, group.id_scales, strict=True):
            assert scale == 1 or need.takes_scaled_ids


@given(layers=models(), objective=objectives)
def test_the_cost_is_that_of_the_groups(layers: list[LayerNeed], objective: Objective) -> None:
    grouping = group_layers(layers, REQUEST, GroupingOptions(objective))
    assert grouping.cost.groups == len(grouping.groups)
    assert grouping.cost.held_bytes == held_bytes(grouping, layers)
    assert grouping.cost in grouping.alternatives
    other = group_layers(layers, REQUEST, GroupingOptions(grouping.other_objective))
    assert other.cost == grouping.other_cost
    assert other.other_cost == grouping.cost


@given(layers=models(), objective=objectives, seed=st.randoms(use_true_random=False))
def test_the_order_of_layers_changes_no_cost_and_a_second_run_changes_nothing(
    layers: list[LayerNeed], objective: Objective, seed
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


def block_bytes_of(groups: list[list[LayerNeed]], sizes: tuple[int, ...]) -> int:
    planes: Counter[int] = Counter()
    paged = 0
    for members, size in zip(groups, sizes, strict=True):
        flat = [part for need in members for part in need.component_bytes(size)]
        if members[0].takes_strides:
            paged = max(paged, sum(flat))
        else:
            planes |= Counter(flat)
    return sum(part * count for part, count in planes.items()) + paged


def enumerate_all(layers: list[LayerNeed], one_size: bool = False) -> dict[int, int]:
    """Least bytes for each number of groups, over every way to group and every block size.

    ``one_size``: groups of equal holding have blocks of equal size.
    """
    best: dict[int, int] = {}
    for parts in partitions(list(range(len(layers)))):
        groups = [[layers[index] for index in part] for part in parts]
        if any(len({need.holding for need in members}) > 1 for members in groups):
            continue
        for sizes in product(*(members[0].block_sizes for members in groups)):
            holdings = {
                (members[0].holding, size) for members, size in zip(groups, sizes, strict=True)
            }
            if one_size and len(holdings) > len({holding for holding, _ in holdings}):
                continue
            blocks = sum(
                members[0].holding.blocks(size, REQUEST)
                for members, size in zip(groups, sizes, strict=True)
            )
            held = blocks * block_bytes_of(groups, sizes)
            best[len(groups)] = min(held, best.get(len(groups), held))
    return best


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
        layer(f"{kind}.{index}", holding=HOLDINGS[kind], rows=(row, row), strides=strides)
        for kind, (count, row) in enumerate(zip(counts, rows, strict=True))
        for index in range(count)
    ]
    best = enumerate_all(layers, one_size=True)
    for cost in group_layers(layers, REQUEST).alternatives:
        assert cost.held_bytes == min(
            held for groups, held in best.items() if groups <= cost.groups
        )
    least = min(best.values())
    assert group_layers(layers, REQUEST).alternatives[-1].held_bytes == least


@settings(max_examples=60)
@given(layers=models(max_layers=5))
def test_no_grouping_is_cheaper_than_enumerating_every_grouping_allows(
    layers: list[LayerNeed],
) -> None:
    # Enumeration knows no scaled ids and no group with strided and contiguous layers.
    assume(not any(need.takes_scaled_ids for need in layers))
    assume(len({need.takes_strides for need in layers}) == 1)
    best = enumerate_all(layers)
    for cost in group_layers(layers, REQUEST).alternatives:
        assert cost.held_bytes >= best[cost.groups]


@given(layers=models())
def test_a_bound_prunes_nothing_that_is_better(layers: list[LayerNeed]) -> None:
    """The search beside every combination of its own choices, without a bound."""
    grouping = group_layers(layers, REQUEST)
    assert grouping.exhaustive
    costs = [(cost.groups, cost.held_bytes) for cost in grouping.alternatives]
    assert costs == unpruned(layers)


def unpruned(layers: list[LayerNeed]) -> list[tuple[int, int]]:
    from mkv_ascend.layout import search as module
    from mkv_ascend.layout.grouping import _by_type

    class Unpruned(module._Search):
        def beaten(self, bound: int, moved: int, groups: int) -> bool:
            return groups in self.best and self.best[groups][:2] <= (bound, moved)

    types = tuple(_by_type(layers, GroupingOptions(), largest=64))
    frontier = Unpruned(types, REQUEST, 10**9).run()
    return [(candidate.groups, candidate.held_bytes) for candidate in frontier.candidates]


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
        layer("draft.0", role=Role.DRAFT, holding=HOLDINGS[1]),
        layer("model.0"),
    ]
    assert [group.layers for group in group_layers(layers, REQUEST).groups] == [
        ("model.0",),
        ("draft.0",),
    ]


def test_a_layer_keeps_its_block_size_where_another_gains_nothing() -> None:
    grouping = group_layers([layer("model.0", sizes=(32, 16, 64))], REQUEST)
    assert grouping.groups[0].block_size == 32


def test_a_state_may_lie_in_an_idle_plane_when_ids_may_be_scaled() -> None:
    state = {"holding": HOLDINGS[2], "rows": (), "sizes": (16,)}
    attention = layer("model.0", sizes=(16,), rows=(8, 8))
    plain = group_layers([attention, layer("model.1", states=(64,), **state)], REQUEST)
    scaled = group_layers(
        [attention, layer("model.1", states=(64,), scaled=True, **state)], REQUEST
    )
    assert plain.block_bytes == 2 * 128 + 64
    assert scaled.block_bytes == 2 * 128
    assert scaled.groups[1].id_scales == (2,)


def test_strided_pages_alias_from_the_first_byte_of_a_block() -> None:
    wide = layer("model.0", rows=(8, 8), sizes=(16,), strides=True)
    narrow = layer("model.1", rows=(2, 2), sizes=(16,), strides=True, holding=HOLDINGS[1])
    assert group_layers([wide, narrow], REQUEST).block_bytes == 256


def test_a_limit_that_nothing_keeps_to_is_an_error_with_the_numbers() -> None:
    layers = [layer("model.0", rows=(8, 8)), layer("draft.0", rows=(1, 3), holding=HOLDINGS[1])]
    best = group_layers(layers, REQUEST, GroupingOptions(Objective.LEAST_MEMORY)).cost
    assert best.padding_fraction > 0.01
    for objective in Objective:
        with pytest.raises(GroupingError, match=f"holds {best.held_bytes} bytes and needs"):
            group_layers(layers, REQUEST, GroupingOptions(objective, max_padding_fraction=0.01))


def test_a_wider_limit_gives_fewer_groups() -> None:
    layers = [layer(f"model.{i}", holding=HOLDINGS[1], sizes=(16,)) for i in range(6)]
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
        (32768, (128, 128), None, 512),
        (32768, (1024, 128), None, 2048),
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


def test_layers_without_a_common_block_size_get_groups_of_their_own() -> None:
    grouping = group_layers([layer("a", sizes=(16,)), layer("b", sizes=(24,))], REQUEST)
    assert [group.block_size for group in grouping.groups] == [16, 24]
    assert grouping.prefix_hit_tokens == 48


def test_names_must_differ_and_no_layers_are_no_groups() -> None:
    with pytest.raises(GroupingError, match="two layers are named 'a'"):
        group_layers([layer("a"), layer("a")], REQUEST)
    assert group_layers([], REQUEST).groups == ()
    with pytest.raises(GroupingError, match=r"max_padding_fraction is 1\.5"):
        GroupingOptions(max_padding_fraction=1.5)


def test_a_search_that_is_cut_short_says_so() -> None:
    layers = [layer(f"{i}", holding=HOLDINGS[i % 2], rows=(2 + i % 3, 2)) for i in range(12)]
    assert not group_layers(layers, REQUEST, GroupingOptions(node_limit=3)).exhaustive
    assert search((), REQUEST).candidates == ()


def test_choices_of_block_sizes() -> None:
    assert block_size_choices(128, 128, 512) == (128, 256, 512)
    assert block_size_choices(1024, 128, 1024) == (1024, 128, 256, 512)
    with pytest.raises(ValueError, match="choose a multiple of 128"):
        block_size_choices(64, 128, 512)


@pytest.mark.parametrize(
    ("change", "text"), [({"sizes": ()}, "block_sizes"), ({"rows": ()}, "at least one component")]
)
def test_a_layer_that_says_nothing_is_refused(
    change: dict[str, tuple[int, ...]], text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        layer("a", **change)
