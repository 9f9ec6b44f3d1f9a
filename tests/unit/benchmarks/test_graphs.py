# SPDX-License-Identifier: Apache-2.0
"""The rows of the graphs benchmark, from measurements that are given."""

from __future__ import annotations

import pytest

from benchmarks import graphs
from benchmarks.graphs_engine import EAGER, REPLAY, UPDATE, split_launches


def measured(total_us, graph_us, replays=1, outside=4, updates=8):
    return {
        "replays": replays,
        "launches_outside_graph": outside,
        "updates": updates,
        "total_us": total_us,
        "graph_us": graph_us,
    }


FOUND = {
    EAGER: {8: [measured(us, 0, 0, 186, 0) for us in (200, 500, 300)]},
    graphs.MODE: {8: [measured(us, 100) for us in (140, 200, 200)]},
}


def test_what_the_device_computed_in_the_graph_is_taken_from_both():
    eager, replayed = graphs.rows("draft_model", 2, 4, 8, FOUND)
    # 40/100, 100/400, 100/200: the median of the ratios, not the ratio of the medians (0.5).
    assert replayed["host_ratio_to_eager"] == 0.4
    assert replayed["total_ratio_to_eager"] == 0.667
    assert (eager["host_us"], replayed["host_us"]) == (200, 100)
    assert (eager["host_ratio_to_eager"], eager["total_ratio_to_eager"]) == (1.0, 1.0)


def test_a_count_that_changes_is_refused():
    found = {**FOUND, graphs.MODE: {8: [measured(140, 100, outside=n) for n in (4, 5, 4)]}}
    with pytest.raises(RuntimeError, match=r"launches_outside_graph .*\[4, 5\]"):
        graphs.rows("draft_model", 2, 4, 8, found)


def test_replays_and_updates_are_not_launches_outside_the_graph():
    launches = {REPLAY: 1, UPDATE: 8, "aten::copy_": 2, "mkv_ascend::draft_plan": 1}
    assert split_launches(launches) == {"replays": 1, "updates": 8, "launches_outside_graph": 3}
