# SPDX-License-Identifier: Apache-2.0
"""The rows of the drafting benchmark, from measurements that are given."""

from __future__ import annotations

from benchmarks import drafting


def measured(host_us, launches=5, builds=2, host_reads=1):
    return {
        "launches": launches,
        "builds": builds,
        "host_reads": host_reads,
        "host_us": host_us,
        "target_launches": 9,
        "target_builds": 1,
    }


FOUND = {
    (drafting.STOCK, 8): [measured(us, launches=111, builds=4) for us in (100, 400, 100)],
    (1, 8): [measured(us) for us in (40, 100, 60)],
    (4, 8): [measured(us) for us in (60, 100, 60)],
}


def test_ratios_are_of_the_same_repeat_and_then_the_median():
    row = drafting.row(4, (1, 8), 1, FOUND)
    # 40/100, 100/400, 60/100: the median of the ratios, not the ratio of the medians (0.6).
    assert row["host_ratio_to_stock"] == 0.4
    assert row["stock"] == {"launches": 111, "builds": 4, "host_reads": 1, "host_us": 100}
    assert (row["launches"], row["builds"], row["host_us"]) == (5, 2, 60)


def test_stock_serves_one_kv_group_only():
    row = drafting.row(4, (4, 8), 1, FOUND)
    assert (row["stock"], row["host_ratio_to_stock"]) == (None, None)
    assert row["host_ratio_to_one_group"] == 1.0
