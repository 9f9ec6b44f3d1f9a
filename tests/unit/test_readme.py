# SPDX-License-Identifier: Apache-2.0
"""What the first screen of the README says is what was measured."""

from __future__ import annotations

import json
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
EVERY = json.loads((ROOT / "docs" / "matrix.json").read_text(encoding="utf-8"))["cells"]
CELLS = [cell for cell in EVERY if cell["ours"] is not None]
RECURRENT = ("gdn", "mamba2", "short conv")


def counted(side: str, cells: list[dict[str, str]] = CELLS) -> int:
    return sum(cell[side] == "works" for cell in cells)


def test_figures_of_the_matrix() -> None:
    refused = sum(cell["ours"] == "refused" for cell in CELLS)
    assert counted("ours") + refused == len(CELLS)
    assert f"| {len(CELLS)} pairs of families" in README
    stock = f"{counted('stock')} right: by lookup (`ngram`) and with `dflash`"
    assert f"{stock} | {counted('ours')} right, {refused}" in README
    newer = [cell for cell in EVERY if cell["ours"] is None]
    assert {cell["method"] for cell in newer} == {"dspark"}
    assert {host["ours"] for cell in newer for host in cell["hosts"].values()} == {"works"}
    assert f"on 0.30.0rc2 also {len(newer)} with `dspark`" in README
    methods = {cell["method"] for cell in CELLS if cell["stock"] == "works"}
    assert methods == {"ngram", "dflash"}


def test_figures_of_recurrent_drafts() -> None:
    cells = [cell for cell in CELLS if cell["draft"] in RECURRENT]
    stock, ours = counted("stock", cells), counted("ours", cells)
    assert f"| {stock} of {len(cells)} right | {ours} of {len(cells)} right |" in README


def test_what_it_links_to_exists() -> None:
    links = re.findall(r"\]\(([\w./-]+?)(?:#[\w-]+)?\)", README)
    assert len(links) > 8
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_it_fits_the_first_screen() -> None:
    head = README.partition("## ")[0]
    assert len(head.splitlines()) <= 30
    assert head.index("![") < head.index("| | stock") < head.index("Not run on hardware yet")
