# SPDX-License-Identifier: Apache-2.0
"""What the search looks at, in which order, and what it cannot count.

What it finds is held against enumeration in test_grouping.py; a wrong order costs no answer as
long as the search sees everything, and worse answers where it is cut short.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mkv_ascend.layout.retention import Request, Retention, RetentionKind
from mkv_ascend.layout.search import LARGEST_COST, NODE_LIMIT, _Curve, _Node, _Search, search
from mkv_ascend.layout.search_options import Choices, LayerType, Level

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


def grown_by(searched: _Search, node: _Node, level: Level, option: int) -> int:
    """Bytes that a block of the node grows by if this option is taken."""
    planes = np.maximum(level.planes[option], node.planes)
    return int(planes @ searched.choices.weights) - node.block


def assert_curve(searched: _Search, node: _Node, curve: _Curve) -> None:
    """As plain loops: for each growth the fewest blocks and groups, and what has so few blocks."""
    options = [range(len(level.bundles)) for level in node.left]
    needs = [
        [grown_by(searched, node, level, option) for option in found]
        for level, found in zip(node.left, options, strict=True)
    ]
    assert [list(one) for one in curve.grown] == needs
    least = max(min(each) for each in needs)
    assert list(curve.growth) == sorted({n for each in needs for n in each if n >= least})
    costs = searched.costs(node, curve)
    for row, growth in enumerate(curve.growth):
        blocks = groups = 0
        for level, each, best in zip(node.left, needs, curve.best, strict=True):
            fitting = [option for option, need in enumerate(each) if need <= growth]
            # Of equally few blocks those that move the fewest layers, then those that grow least.
            expected = min(fitting, key=lambda i: (level.blocks[i], level.moved[i], each[i], i))
            assert best[row] == expected
            blocks += level.blocks[expected]
            groups += min(level.splits[option] for option in fitting)
        assert (curve.blocks[row], curve.groups[row]) == (blocks, groups)
        held = (node.block + growth) * (node.blocks + blocks)
        needed = max(held, searched.choices.needed_bytes)
        assert costs[row] == needed * searched.scale + node.moved


def options_by_bound(searched: _Search, node: _Node, curve: _Curve) -> list[int]:
    """As plain loops: what may lead to something better, the least that it may cost first."""
    level = node.left[0]

    def growth(of: Level, option: int) -> int:
        return grown_by(searched, node, of, option)

    found = []
    for option in range(len(level.bundles)):
        own = growth(level, option)
        bounds, is_open = [], False
        for grown in (int(one) for one in curve.growth if own <= one):
            blocks = node.blocks + int(level.blocks[option])
            groups = node.groups + int(level.splits[option])
            for other in node.left[1:]:
                fitting = [i for i in range(len(other.bundles)) if growth(other, i) <= grown]
                blocks += min(int(other.blocks[i]) for i in fitting)
                groups += min(int(other.splits[i]) for i in fitting)
            moved = node.moved + int(level.moved[option])
            bounds.append((node.block + grown) * blocks * searched.scale + moved)
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
