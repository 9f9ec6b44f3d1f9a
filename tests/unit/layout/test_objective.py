# SPDX-License-Identifier: Apache-2.0
"""Which of several groupings is taken: what a group is worth, and limits of padding and memory."""

from __future__ import annotations

import pytest

from mkv_ascend.layout.objective import MOST_GROUPS, USUAL_MOST_GROUPS, Cost, Objective, choose

NEEDED = 1000
Found = list[tuple[int, int]]


def costs(found: Found) -> list[Cost]:
    """Of (groups, bytes that a request holds); it needs 1,000 of them."""
    return [Cost(groups, held, NEEDED) for groups, held in found]


@pytest.mark.parametrize(
    ("found", "taken"),
    [
        # A group more costs 0.3% of a step: as much as 3 of these bytes.
        ([(1, 1050), (2, 1048)], 0),
        ([(1, 1050), (2, 1040)], 1),
        ([(1, 1040), (USUAL_MOST_GROUPS, 1000)], 0),
        ([(1, 1050), (USUAL_MOST_GROUPS, 1000)], 1),
        # More groups than usual are taken only where fewer hold 8% more than the least.
        ([(USUAL_MOST_GROUPS, 1080), (USUAL_MOST_GROUPS + 1, 1000)], 0),
        ([(USUAL_MOST_GROUPS, 1081), (USUAL_MOST_GROUPS + 1, 1000)], 1),
        # Where none has so few groups, the fewest of those that hold little more.
        ([(1, 1200), (USUAL_MOST_GROUPS + 1, 1040), (USUAL_MOST_GROUPS + 2, 1000)], 1),
        ([(1, 9000), (USUAL_MOST_GROUPS + 1, 1080), (MOST_GROUPS + 1, 1000)], 1),
        ([(1, 9000), (MOST_GROUPS, 1080), (MOST_GROUPS + 1, 1000)], 1),
        # Beyond the most groups whatever memory fewer cost, priced like any others.
        ([(1, 9000), (2, 8000), (MOST_GROUPS + 1, 1000)], 1),
        ([(1, 8001), (2, 8000), (MOST_GROUPS + 1, 1000)], 0),
        ([(1, 9000), (MOST_GROUPS, 8000), (MOST_GROUPS + 1, 1000)], 1),
        # Where none has fewer groups, the fewest.
        ([(MOST_GROUPS + 1, 9000), (MOST_GROUPS + 2, 1000)], 0),
    ],
)
def test_groups_are_weighed_against_memory(found: Found, taken: int) -> None:
    assert choose(Objective.BALANCED, costs(found), None) == taken


@pytest.mark.parametrize(
    ("most_bytes", "taken"),
    [(None, 0), (1050, 0), (1049, 1), (1000, 2), (999, 0)],
)
def test_few_groups_buy_nothing_that_holds_more_than_without_any(
    most_bytes: int | None, taken: int
) -> None:
    """Where nothing holds so little, that is no reason to choose."""
    found = [(1, 1050), (4, 1049), (USUAL_MOST_GROUPS + 1, 1000)]
    assert choose(Objective.BALANCED, costs(found), None, most_bytes) == taken


STEPS = [(1, 2000), (2, 1250), (3, 1079), (4, 1000)]
"""Half of the memory is padding, a fifth, 7.3%, none."""


@pytest.mark.parametrize(
    ("limit", "taken"),
    [
        (None, {"balanced": 3, "fewest_groups": 2, "least_memory": 3}),
        (1.0, {"balanced": 0, "fewest_groups": 0, "least_memory": 3}),
        (0.5, {"balanced": 0, "fewest_groups": 0, "least_memory": 3}),
        (0.4, {"balanced": 1, "fewest_groups": 1, "least_memory": 3}),
        (0.0, {"balanced": 3, "fewest_groups": 3, "least_memory": 3}),
    ],
)
def test_a_limit_of_padding_takes_the_place_of_the_price(
    limit: float | None, taken: dict[str, int]
) -> None:
    chosen = {str(one): choose(one, costs(STEPS), limit) for one in Objective}
    assert chosen == taken


def test_fewest_groups_are_never_more_than_the_balance_takes() -> None:
    """It gave 44 groups where the balance had 9, which hold more than 8 % over the least memory."""
    found = [(9, 1500), (44, 1070), (60, 1000)]
    assert [choose(one, costs(found), None) for one in Objective] == [0, 0, 2]
    # Without the bytes that are held without any of it, the balance is 20 groups.
    found = [(9, 1081), (20, 1080), (40, 1000)]
    assert choose(Objective.BALANCED, costs(found), None, 1000) == 0
    assert choose(Objective.FEWEST_GROUPS, costs(found), None, 1000) == 0


@pytest.mark.parametrize("objective", list(Objective), ids=str)
def test_nothing_is_taken_that_has_more_padding_than_the_limit(objective: Objective) -> None:
    assert choose(objective, costs(STEPS[:3]), 0.07) is None


def test_requests_fit_beside_vllms_own_block() -> None:
    cost = Cost(2, 400, NEEDED, block_bytes=100, blocks=4)
    assert [cost.num_blocks_in(memory) for memory in (0, 99, 950)] == [None, 0, 9]
    assert [cost.requests_in(memory) for memory in (None, 99, 199, 950)] == [None, 0, 0, 2]
    assert Cost(2, 400, NEEDED).requests_in(950) is None
