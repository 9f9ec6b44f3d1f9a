# SPDX-License-Identifier: Apache-2.0
"""What benchmarks print about tiny models and page pools."""

from __future__ import annotations

import pytest
from vllm.v1.core.block_pool import BlockPool

from benchmarks import acceptance, page_pool
from benchmarks.kv_layout import below, figures
from benchmarks.rows import ROWS
from benchmarks.stock_groups import run_stock
from mkv_ascend.adapters.common.kv_cache.page_blocks import PageBlocks
from tests.support import engine, hosts

# One row of ``benchmarks.acceptance``: draft tokens of ours and of stock vllm-ascend, judged.


@pytest.mark.skipif(
    engine.compared_dtype() != "float32",
    reason="in 16 bits a near tie is a wrong token, with stock as with ours",
)
@pytest.mark.nightly("stock with models of its own")
def test_stock_drafts_wrong_tokens_where_ours_drafts_none():
    """Stock's lengths of later passes count rejected tokens; no wrong token at all would be odd."""
    [pair] = [pair for pair in acceptance.PAIRS if pair.name == "llama+llama"]
    row = acceptance.measure(pair)
    print(acceptance.as_table([row]))
    assert row["ours"]["wrong"] == 0 < row["stock"]["wrong"]
    assert row["ours"]["drafted"] > 500
    for side in ("ours", "stock"):
        rates = row[side]["acceptance"]
        assert len(rates) == pair.k
        assert 0.3 < rates[0] < 1
        assert rates == sorted(rates, reverse=True)


# vLLM's own grouping of the benchmark's pairs still has the figures that the table holds.


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


# The benchmark of shared pages compares our pool with vLLM's own, on all that it names.


@pytest.mark.core
def test_each_part_of_both_pools_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_pool, "PAIRS", 1)
    found = page_pool.ratios(requests=2, shared=2, stock=3)
    assert list(found) == [*page_pool.PARTS, "all"]
    assert all(ratio > 0 for ratio in found.values())


@pytest.mark.core
@pytest.mark.parametrize("groups", [2, 3])
def test_one_is_ours_and_the_other_vllms(groups: int) -> None:
    ours, theirs = (
        page_pool._scheduler(groups, 2, is_shared=is_shared).kv_cache_manager.block_pool
        for is_shared in (True, False)
    )
    assert type(ours) is PageBlocks
    assert type(theirs) is BlockPool
