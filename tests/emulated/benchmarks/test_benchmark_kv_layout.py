# SPDX-License-Identifier: Apache-2.0
"""vLLM's own grouping of the benchmark's pairs still has the figures that the table holds."""

from __future__ import annotations

import pytest

from benchmarks.kv_layout import below, figures
from benchmarks.rows import ROWS
from benchmarks.stock_groups import run_stock
from tests.support import hosts


@pytest.mark.host("0.30")
@hosts.only_on("vllm_ascend_0_23", "figures that were taken on it; 0.30.0rc2 shares no memory")
def test_vllm_groups_as_it_did() -> None:
    """Fails when an upgrade of vLLM changes a figure: the benchmark's table then needs a look."""
    figures = run_stock()
    assert list(figures) == [row.name for row in ROWS]
    for row in ROWS:
        stock = figures[row.name]
        if row.stock is None:
            assert stock["groups"] is None, row.name
            assert stock["error"].startswith(
                ("NotImplementedError: The page size", "AssertionError")
            )
        else:
            assert stock["error"] is None, row.name
            assert (stock["groups"], stock["mib"]) == (row.stock.groups, row.stock.mib), row.name


@hosts.only_on("vllm_ascend_0_30", "gives each layer a buffer of its own")
def test_more_requests_fit_than_with_a_buffer_for_each_layer() -> None:
    """As many times more as stock has equal groups that share nothing."""
    stock = run_stock()
    rows = [figures(row, stock[row.name], stock[row.name]) for row in ROWS]
    assert not any(below(row) for row in rows)
    equal = {name: part["equal_groups"] for name, part in stock.items() if not part["error"]}
    assert equal["gpt-oss-20b + eagle 8x128"] == 25
    assert equal["gpt-oss-120b + 20b"] == 2
    assert [row["name"] for row in rows if row["candidate"]["error"]] == ["MLA27 + LFM2-350M"]
