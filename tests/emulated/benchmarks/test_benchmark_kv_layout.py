# SPDX-License-Identifier: Apache-2.0
"""vLLM's own grouping of the benchmark's pairs still has the figures that the table holds."""

from __future__ import annotations

from benchmarks.rows import ROWS
from benchmarks.stock_groups import run_stock


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
