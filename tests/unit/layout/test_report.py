# SPDX-License-Identifier: Apache-2.0
"""What an engine says of its own plan: a few lines of text, and bytes by KV group."""

import pytest

from mkv_ascend.layout.component import ONE_BLOCK, PageShape
from mkv_ascend.layout.kind import Kind, Role
from mkv_ascend.layout.plan import BoundPlan, make_plan
from mkv_ascend.layout.report import format_bytes, served_groups, served_text
from tests.support.plan_reports import dense


def served() -> tuple[BoundPlan, int, int]:
    """Two dense layers of the target, one of the draft with its window in the second group.

    And the bytes of a page of either.
    """
    full, window = (
        [dense(f"target.layers.{i}", Role.TARGET, 4) for i in range(2)],
        [dense("draft.layers.0", Role.DRAFT, 1, Kind.SLIDING_WINDOW)],
    )
    return make_plan([full, window]).bind(21), full[0].page_bytes, window[0].page_bytes


def test_what_a_block_holds_for_each_group_is_its_layers_and_the_rest_is_idle() -> None:
    bound, page, small = served()
    assert served_groups(bound) == [
        {"kv_group": 0, "used_bytes": {"target": 2 * page}, "idle_bytes": small},
        {"kv_group": 1, "used_bytes": {"draft": small}, "idle_bytes": 2 * page},
    ]


def test_a_request_without_a_block_has_no_padding() -> None:
    bound, _, _ = served()
    assert served_text(bound, 0, (0, 0), {}).splitlines()[-1] == (
        "One request of 0 tokens takes 0 blocks (0 B, 0.0% padding): 20.00 at once"
    )


def test_requests_at_once_fill_each_others_pages() -> None:
    full = [dense("target.layers.0", Role.TARGET, 4)]
    small = [dense("draft.layers.0", Role.DRAFT, 1, Kind.SLIDING_WINDOW)]
    bound = make_plan([full, small], shapes=[ONE_BLOCK, PageShape(2, 2)]).bind(21)
    lines = served_text(bound, 1000, (8, 2), {}).splitlines()
    assert lines[-1].startswith("One request of 1000 tokens takes 9 pages (")
    assert lines[-1].endswith(f" {20 / 8.5:.2f} at once")


def test_a_model_whose_layers_keep_nothing() -> None:
    bound = make_plan([]).bind(1)
    assert (bound.groups, bound.total_bytes) == ((), 0)
    assert served_text(bound, 512, (), {}) == (
        "KV cache plan: no layer keeps keys, values or states"
    )


def test_blocks_must_be_told_of_each_group() -> None:
    bound, _, _ = served()
    with pytest.raises(ValueError, match="longer"):
        served_text(bound, 1000, (8,), {})


def test_what_is_served_is_a_few_lines() -> None:
    bound, page, small = served()
    lines = served_text(bound, 1000, (8, 2), {"draft.layers.0": "ascend_gqa"}).splitlines()
    assert 10 * (2 * page + small) == round(2.8125 * 2**20)
    assert round(1 - (8 * 2 * page + 2 * small) / (10 * (2 * page + small)), 3) == 0.267
    assert lines[0].startswith("KV cache plan: 2 groups, 21 blocks of 288.0 KiB, 5.9 MiB in all")
    rows = [line.split() for line in lines]
    groups = "0 128 8 11.1% target.layers.0-1 (2) target full_attention - 128.0 KiB"
    assert rows[2] == groups.split()
    groups = "1 128 2 88.9% draft.layers.0 (1) draft sliding_window ascend_gqa 32.0 KiB"
    assert rows[3] == groups.split()
    assert lines[-1] == (
        "One request of 1000 tokens takes 10 blocks (2.8 MiB, 26.7% padding): 2.00 at once"
    )
    assert len(lines) < 9


@pytest.mark.parametrize(
    ("number", "shown"),
    [(1, "1 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (2**20, "1.0 MiB"), (3 * 2**30, "3.0 GiB")],
)
def test_bytes_are_shown_in_the_largest_unit(number: int, shown: str) -> None:
    assert format_bytes(number) == shown
