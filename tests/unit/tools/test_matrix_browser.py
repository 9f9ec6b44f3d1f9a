# SPDX-License-Identifier: Apache-2.0
"""The filters of docs/matrix.md in a browser."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

import matrix_pages
from tests.support.chromium import needs_chromium, run_chromium

pytestmark = needs_chromium
markdown = pytest.importorskip("markdown", reason="mkdocs is in one environment")

DOCS = matrix_pages.PATH.parent
CELLS = matrix_pages.read()["cells"]


def shown(folder: Path, query: str) -> tuple[list[str], list[list[str]], str]:
    """Heads of columns that are seen, cells that are, and what the page counts."""
    text = (DOCS / "matrix.md").read_text(encoding="utf-8")
    body = markdown.markdown(text, extensions=["tables", "toc"])
    script = (DOCS / "javascripts" / "matrix.js").as_uri()
    page = folder / "matrix.html"
    page.write_text(f"<script src='{script}'></script>{body}", encoding="utf-8")
    made = run_chromium(page, folder, "--dump-dom", "--virtual-time-budget=2000", query=query)
    form = made[made.index("<form") : made.index("</form>")]
    count = form.partition("<output>")[2].partition("</output>")[0]
    behind = made[made.index("</form>") + len("</form>") :]
    table = ElementTree.fromstring(behind[: behind.index("</table>") + len("</table>")].strip())
    rows = [row for row in table.iter("tr") if "hidden" not in row.attrib]
    head, *cells = [
        ["".join(cell.itertext()) for cell in row if "hidden" not in cell.attrib] for row in rows
    ]
    return head, cells, count


def test_every_pair_is_seen_at_first(tmp_path: Path) -> None:
    head, cells, count = shown(tmp_path, "")
    assert len(cells) == len(CELLS)
    assert count == f"{len(CELLS)} of {len(CELLS)} pairs"
    assert {"0.23.0", "0.30.0rc2", "0.30.0rc2 V2"} < set(head)


@pytest.mark.parametrize("target", ["gemma4", "dense"])
def test_an_address_chooses_pairs_and_a_host(tmp_path: Path, target: str) -> None:
    query = f"?target={target}&method=draft_model&host=0.30.0rc2+V2"
    head, cells, count = shown(tmp_path, query)
    wanted = [cell for cell in CELLS if (cell["target"], cell["method"]) == (target, "draft_model")]
    assert len(wanted) > 1
    assert [row[:2] for row in cells] == [[cell["target"], cell["draft"]] for cell in wanted]
    assert count.startswith(f"{len(wanted)} of ")
    assert "0.30.0rc2 V2" in head
    assert not {"0.23.0", "0.30.0rc2"} & set(head)
    place = head.index("0.30.0rc2 V2")
    assert [row[place] for row in cells] == [
        matrix_pages.on_host(cell, "0.30.0rc2 V2") for cell in wanted
    ]
