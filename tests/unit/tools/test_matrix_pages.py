# SPDX-License-Identifier: Apache-2.0
"""What docs/matrix.json publishes."""

from __future__ import annotations

import re

import pytest

import matrix_pages


def test_no_published_cell_fails() -> None:
    """A cell works, or is refused with a reason, on each host and in graphs."""
    for published in matrix_pages.read()["cells"]:
        name = f"{published['target']}/{published['draft']}"
        hosts = [published, *published.get("hosts", {}).values()]
        for host in hosts[published["ours"] is None :]:
            assert host["ours"] in ("works", "refused"), name
            assert "fails" not in (host.get("graph"), host.get("hits")), name
            assert (host["ours"] == "refused") == bool(host["reason"]), name


def test_readme_has_the_counts_of_the_matrix() -> None:
    """Of stock those pairs alone count whose result need not be one of the tiny models' sizes."""
    cells = matrix_pages.read()["cells"]
    ours = [cell["ours"] for cell in cells if cell["ours"] is not None]
    counted, right, exact = matrix_pages.stock_counts({"cells": cells})
    assert counted < len(ours)
    for page in ("README.md", "README.zh.md"):
        text = (matrix_pages.PATH.parents[1] / page).read_text(encoding="utf-8")
        (line,) = [line for line in text.splitlines() if "docs/matrix.md" in line]
        numbers = [int(number) for number in re.findall(r"(?<![.\d])\d+(?![.\d])", line)]
        left_out = len(ours) - counted
        expected = [len(ours), counted, right, exact, left_out, ours.count("works")]
        assert numbers[:6] == expected, page


@pytest.mark.parametrize(
    ("stock", "reason", "columns"),
    [
        ("works", None, ("yes", "yes", "yes")),
        ("refused", "drafts in one group", ("no", "", "")),
        ("fails", "AssertionError", ("no", "", "")),
        ("fails", "3 of 8 requests got other tokens", ("yes", "no", "")),
        ("fails", "2 of 9 draft tokens are not the draft's own", ("yes", "yes", "no: 0.60 (0.75)")),
        (
            "fails",
            "Assertion failed, Cannot align ssm_page_size and attn_page_size.",
            ("not counted", "", ""),
        ),
        (None, None, ("no method", "", "")),
    ],
)
def test_stock_has_three_columns(stock, reason, columns) -> None:
    cell = {"stock": stock, "stock_reason": reason}
    cell |= {"stock_acceptance": 0.6, "reference_acceptance": 0.75}
    assert matrix_pages.stock_columns(cell) == columns
