# SPDX-License-Identifier: Apache-2.0
"""The tables that are made from docs/matrix.json."""

from __future__ import annotations

import matrix_pages


def cell(target: str, draft: str, **fields: object) -> dict[str, object]:
    values = {
        "target": target,
        "draft": draft,
        "method": "draft_model",
        "ours": "works",
        "graph": "works",
        "hits": "works",
        "stock": "works",
        "acceptance": 1.5,
        "reference_acceptance": 1.5,
        "reason": "",
        "graph_reason": "",
        "stock_reason": "",
    }
    return {**values, **fields}


EAGER = {"graph": "draft eager", "graph_reason": "MLA"}

REFUSED = {
    **cell("b", "x", ours="refused", graph="refused", hits="refused", stock="refused"),
    "acceptance": None,
    "reason": "cannot be",
    "graph_reason": "cannot be",
}

MATRIX = {
    "cells": [
        cell("a", "x"),
        {**cell("a", "head", stock="fails", stock_reason="3 | 4 <wrong>"), **EAGER, "hits": None},
        REFUSED,
    ]
}

THERE = {"ours": "works", "graph": "works", "acceptance": 0.5, "reference_acceptance": 0.5}
NEWER = {
    **dict.fromkeys(REFUSED),
    "target": "a",
    "draft": "new",
    "method": "new",
    "hosts": {
        "0.30": {**THERE, "hits": "works"},
        "0.30 V2": {**THERE, "ours": "refused", "reason": "no"},
    },
}


def test_the_grid_has_a_row_for_each_target_and_empty_places() -> None:
    assert matrix_pages.grid(MATRIX).splitlines() == [
        "| target | x | head |",
        "| --- | --- | --- |",
        "| a | **works** (works) | **works** (fails) |",
        "| b | refused (refused) |  |",
    ]


def test_no_published_cell_fails() -> None:
    """A cell works, or is refused with a reason, on each host and in graphs."""
    for published in matrix_pages.read()["cells"]:
        name = f"{published['target']}/{published['draft']}"
        hosts = [published, *published.get("hosts", {}).values()]
        for host in hosts[published["ours"] is None :]:
            assert host["ours"] in ("works", "refused"), name
            assert "fails" not in (host.get("graph"), host.get("hits")), name
            assert (host["ours"] == "refused") == bool(host["reason"]), name


def test_details_name_reasons_of_all_sides() -> None:
    lines = matrix_pages.details(MATRIX).splitlines()[2:]
    assert lines == [
        "| a | x | draft_model | works | works | works | 1.50 (1.50) | works |  |",
        "| a | head | draft_model | works | draft eager | not run | 1.50 (1.50) | fails "
        "| in graphs: MLA; stock: 3 \\| 4 &lt;wrong> |",
        "| b | x | draft_model | refused | refused | refused |  | refused | cannot be |",
    ]


def test_a_method_that_the_first_host_does_not_know() -> None:
    """Nothing was started there; the grid has the first host that knows it."""
    newer = {"cells": [NEWER]}
    assert matrix_pages.grid(newer).splitlines()[-1] == "| a | **works** (0.30) |"
    assert matrix_pages.details(newer).splitlines()[-1] == (
        "| a | new | new | no method | no method | no method | 0.50 (0.50) | no method "
        "| works, works, works | refused, works, not run | 0.30 V2: no |"
    )
