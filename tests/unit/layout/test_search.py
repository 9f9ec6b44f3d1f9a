# SPDX-License-Identifier: Apache-2.0
"""What the search looks at, in which order, and what it cannot count.

What it finds is held against enumeration in test_grouping.py; a wrong order costs no answer as
long as the search sees everything, and worse answers where it is cut short.
"""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mkv_ascend.layout.retention import Request, Retention, RetentionKind
from mkv_ascend.layout.search import LARGEST_COST, NODE_LIMIT, _Curve, _Node, _Search, search
from mkv_ascend.layout.search_options import Choices, Integers, LayerType, Level, Plane

REQUEST = Request(tokens=1024, tokens_per_step=4)
ALL, WINDOW = Retention(RetentionKind.ALL), Retention(RetentionKind.WINDOW, 64)
STATE = Retention(RetentionKind.STATE, 1)


def layers(
    count: int,
    rows: tuple[int, ...],
    retention: Retention = ALL,
    table: str = "",
    sizes: tuple[int, ...] = (16, 32, 64),
) -> LayerType:
    return LayerType(retention, sizes, rows, (), False, None, count, table)


def states(count: int, size: int, sizes: tuple[int, ...] = (16,)) -> LayerType:
    return LayerType(STATE, sizes, (), (size,), False, None, count)


@st.composite
def models(draw: st.DrawFn) -> tuple[LayerType, ...]:
    """Three to five types, mostly of several tables, of which some are alike in all but that."""
    kinds = st.tuples(
        st.integers(1, 9),
        st.sampled_from([(2, 2), (4, 4), (8, 8), (8, 1)]),
        st.sampled_from([ALL, WINDOW]),
        st.sampled_from(["", "x", "y"]),
    )
    found = draw(st.lists(kinds, min_size=3, max_size=5, unique_by=lambda kind: kind[1:]))
    return tuple(layers(*kind) for kind in found)


def bytes_with(searched: _Search, node: _Node, level: Level, option: int) -> int:
    """Bytes of a block of the node if this option is taken."""
    planes = np.maximum(level.planes[option], node.planes)
    return int(planes @ searched.choices.weights)


def assert_curve(searched: _Search, node: _Node, curve: _Curve) -> None:
    """As plain loops: for each size of a block the fewest blocks and groups, and what has these."""
    options = [range(len(level.bundles)) for level in node.left]
    needs = [
        [bytes_with(searched, node, level, option) for option in found]
        for level, found in zip(node.left, options, strict=True)
    ]
    assert [list(one) for one in curve.needed] == needs
    least = max(min(each) for each in needs)
    assert list(curve.block_bytes) == sorted({n for each in needs for n in each if n >= least})
    costs = searched.costs(node, curve)
    for row, size in enumerate(curve.block_bytes):
        blocks = groups = 0
        for level, each, best in zip(node.left, needs, curve.best, strict=True):
            fitting = [option for option, need in enumerate(each) if need <= size]
            # Of equally few blocks those that move the fewest layers, then the smallest.
            expected = min(fitting, key=lambda i: (level.blocks[i], level.moved[i], each[i], i))
            assert best[row] == expected
            blocks += level.blocks[expected]
            groups += min(level.splits[option] for option in fitting)
        assert (curve.blocks[row], curve.groups[row]) == (blocks, groups)
        held = size * (node.blocks + blocks)
        needed = max(held, searched.choices.needed_bytes)
        assert costs[row] == needed * searched.scale + node.moved


def options_by_bound(searched: _Search, node: _Node, curve: _Curve) -> list[int]:
    """As plain loops: what may lead to something better, the least that it may cost first."""
    level = node.left[0]

    def needed(of: Level, option: int) -> int:
        return bytes_with(searched, node, of, option)

    found = []
    for option in range(len(level.bundles)):
        own = needed(level, option)
        bounds, is_open = [], False
        for size in (int(one) for one in curve.block_bytes if own <= one):
            blocks = node.blocks + int(level.blocks[option])
            groups = node.groups + int(level.splits[option])
            for other in node.left[1:]:
                fitting = [i for i in range(len(other.bundles)) if needed(other, i) <= size]
                blocks += min(int(other.blocks[i]) for i in fitting)
                groups += min(int(other.splits[i]) for i in fitting)
            moved = node.moved + int(level.moved[option])
            bounds.append(size * blocks * searched.scale + moved)
            is_open = is_open or bounds[-1] < int(searched.known[groups])
        if is_open:
            found.append((min(bounds), option))
    return [option for _, option in sorted(found)]


def numbers_of_options(types: tuple[LayerType, ...], nodes: int = NODE_LIMIT) -> list[int]:
    """How many options each node has, each in the order that the loops give."""
    searched = _Search(Choices(types, REQUEST), nodes)
    promising, found = searched.promising, []

    def compared(node: _Node, curve: _Curve) -> list[int]:
        expected = options_by_bound(searched, node, curve)
        assert promising(node, curve) == expected
        assert_curve(searched, node, curve)
        found.append(len(node.left[0].bundles))
        return expected

    searched.promising = compared  # type: ignore[method-assign]
    searched.run()
    return found


@settings(deadline=None, max_examples=20)
@given(types=models())
def test_options_come_in_the_order_of_the_least_that_they_may_cost(
    types: tuple[LayerType, ...],
) -> None:
    numbers_of_options(types, nodes=12)


def test_of_many_options_that_are_equally_good_the_first_comes_first() -> None:
    """So many that numpy changes their order where it need not be kept."""
    types = (
        layers(26, (8, 1), WINDOW, "y"),
        layers(11, (4, 4), ALL, "x"),
        layers(56, (8, 8), ALL),
    )
    assert max(numbers_of_options(types)) > 16


def test_what_holds_most_is_decided_first() -> None:
    """Not what has most blocks or layers: 48 KiB come before 2 KiB and 1.5 KiB."""
    light, heavy = layers(1, (2,), table="x"), layers(3, (8, 8), table="y")
    window = layers(2, (4, 4), WINDOW)
    for types in ((light, window, heavy), (heavy, light, window)):
        searched = _Search(Choices(types, REQUEST), NODE_LIMIT)
        (levels,) = searched.choices.partitions()
        left = [types[level.bundles[0].types[0]] for level in searched.root(levels).left]
        assert left == [heavy, light, window]


def test_all_choices_of_two_levels_are_one_node_beside_the_root() -> None:
    window = layers(7, (8, 1), WINDOW)
    # Together they are as good as anything can be: the root says so.
    assert search((layers(8, (8, 1)), window), REQUEST).nodes == 1
    assert search((layers(8, (8, 1)), layers(9, (2, 2), WINDOW)), REQUEST).nodes == 2


def test_what_is_decided_leaves_other_block_sizes_to_its_table_and_all_to_others() -> None:
    """Bundles of one table with blocks of one size are one bundle, which is looked at as such."""
    types = (layers(5, (8, 1)), layers(4, (2, 2)), layers(3, (4, 4)), layers(2, (4, 4), WINDOW))
    searched = _Search(Choices(types, REQUEST), NODE_LIMIT)
    levels = max(searched.choices.partitions(), key=len)
    node = searched.root(levels)
    level, left = node.left[0], node.left[1:]
    assert len(left) == 3
    for option, bundle in enumerate(level.bundles):
        child = searched.child(node, level, option)
        assert child is not None
        for before, after in zip(left, child.left, strict=True):
            taken = bundle.block_size if before.table == level.table else None
            kept = tuple(one for one in before.bundles if one.block_size != taken)
            assert after.bundles == kept
            assert len(kept) < len(before.bundles) or before.table != level.table


def test_what_has_no_block_size_left_is_no_grouping() -> None:
    types = [layers(count, (size, size), sizes=(16,)) for count, size in ((5, 8), (4, 2))]
    searched = _Search(Choices((*types, layers(2, (4, 4), WINDOW)), REQUEST), NODE_LIMIT)
    levels = [searched.choices.level(0, (index,)) for index in (0, 1)]
    node = searched.root(tuple(level for level in levels if level is not None))
    assert searched.child(node, node.left[0], 0) is None


def test_each_pair_of_the_last_two_levels_is_compared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many are computed in one go."""
    monkeypatch.setattr("mkv_ascend.layout.search.PAIRS_AT_ONCE", 20)
    searched = _Search(Choices((layers(8, (8, 1)), layers(9, (2, 2), WINDOW)), REQUEST), NODE_LIMIT)
    (levels,) = searched.choices.partitions()
    node, compare, times = searched.root(levels), searched.compare, 0
    seen: list[tuple[int, ...]] = []

    def compared(node: _Node, levels: tuple[Level, ...], options: tuple[Integers, ...]) -> None:
        nonlocal times
        times += 1
        seen.extend(zip(*(option.tolist() for option in options), strict=True))
        compare(node, levels, options)

    searched.compare = compared  # type: ignore[method-assign]
    searched.finish(node)
    first, second = (range(len(level.bundles)) for level in node.left)
    assert sorted(seen) == list(itertools.product(first, second))
    assert times > 2


def test_assigned_planes_are_what_the_fullest_group_holds_of_each() -> None:
    """Counted layer by layer, of planes that other layers need as well. Up to 16 groups by load."""
    kinds = (layers(16, (8, 1), sizes=(16,)), layers(4, (8, 8), sizes=(16,)))
    choices = Choices((*kinds, layers(3, (5, 7), WINDOW, sizes=(16,))), REQUEST)
    level = choices.level(0, (0, 1))
    assert level is not None
    assert [choices.types[index] for index in (0, 1)] == list(kinds)
    for bundle, assigned in zip(level.bundles, level.assigned.tolist(), strict=True):
        held = [Counter[Plane]() for _ in range(bundle.splits)]
        for index, groups in zip(bundle.types, bundle.group_of_layers(choices.types), strict=True):
            for group in groups:
                held[group].update(choices.types[index].planes(16))
        assert assigned == [max(one[plane] for one in held) for plane in choices.plane_index]
    by_load = {bundle.splits: bundle.by_load for bundle in level.bundles}
    # Assigned in turn, three of 17 groups hold three planes of 128 bytes, where two would do.
    assert by_load[16]
    assert not by_load[17]


def test_what_64_bits_do_not_hold_is_refused() -> None:
    """A cost is bytes times four here: two block sizes, each a rank, and one."""
    largest = LARGEST_COST // 4
    (found,) = search((states(1, largest - 1, sizes=(16, 32)),), REQUEST).candidates
    assert (found.held_bytes, found.bundles[0].block_size) == (largest - 1, 16)
    with pytest.raises(ValueError, match="request of 1024 tokens are too large"):
        search((states(1, largest, sizes=(16, 32)),), REQUEST)


@pytest.mark.parametrize("types", [(states(16, 2**59),), (states(1, 2**62), states(1, 2**61))])
def test_no_number_of_layers_is_counted_beyond_64_bits(types: tuple[LayerType, ...]) -> None:
    with pytest.raises(ValueError, match="too large to be planned; lower max_model_len"):
        search(types, REQUEST)
