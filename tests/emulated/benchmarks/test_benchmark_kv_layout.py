# SPDX-License-Identifier: Apache-2.0
"""vLLM's own grouping of the benchmark's pairs still has the figures that the table holds."""

from __future__ import annotations

from benchmarks.kv_layout import below, figures
from benchmarks.rows import ROWS
from benchmarks.stock_groups import run_stock
from tests.support import hosts


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
