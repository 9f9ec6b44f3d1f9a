# SPDX-License-Identifier: Apache-2.0
"""One row of ``benchmarks.acceptance``: draft tokens of ours and of stock vllm-ascend, judged."""

import pytest

from benchmarks import acceptance
from tests.support import engine

pytestmark = [
    pytest.mark.skipif(
        engine.compared_dtype() != "float32",
        reason="in 16 bits a near tie is a wrong token, with stock as with ours",
    ),
    pytest.mark.nightly("stock with models of its own"),
]


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
