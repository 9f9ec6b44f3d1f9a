# SPDX-License-Identifier: Apache-2.0
"""Cells of the matrix (``make matrix`` runs all of them): each ends as docs/matrix.json says.

A cell that works gave Hugging Face's tokens, proposed what the draft itself says after every
context, and accepted as many of these tokens as plain loops do, with prompts in chunks and a
request that was preempted (``benchmarks/matrix/judging.py``).
"""

import matrix_pages
import pytest

from benchmarks.matrix import cells, running
from mkv_ascend.testing import engine

pytestmark = pytest.mark.skipif(
    engine.compared_dtype() != "float32",
    reason="in 16 bits too many choices are near ties to tell what an engine must do",
)

CELLS = [
    "dense/window+full",
    "dense/gdn",
    "mla/window+full",
    "dsa/window+full",
    "short conv/dense",
]
"""Ways in which layers of target and draft differ that no other test runs so."""


@pytest.mark.parametrize("name", CELLS)
def test_a_cell_ends_as_published(name):
    (cell,) = cells.find_cells([name])
    (published,) = [
        row
        for row in matrix_pages.read()["cells"]
        if (row["target"], row["draft"]) == (cell.target, cell.draft)
    ]
    verdict = running.run(cell, running.OURS)
    assert verdict.outcome == published["ours"], verdict.reason
    if verdict.outcome == running.WORKS and cell.draft_model is not None:
        # Neither a hopeless draft nor one that is never rejected would show much.
        assert 0.2 < verdict.acceptance < cells.K
