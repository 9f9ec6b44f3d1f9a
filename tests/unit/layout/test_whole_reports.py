# SPDX-License-Identifier: Apache-2.0
"""Reports word for word, as text, page and JSON. Their numbers are judged in test_report.py.

Each is compared with a file that somebody has read. Where a report is to change, read the new one
that the failure names, and put it in the old one's place.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from mkv_ascend.layout.component import LayerLayout
from mkv_ascend.layout.grouping import CoarserHits, GroupingOptions
from mkv_ascend.layout.kind import Kind, Role
from mkv_ascend.layout.objective import Objective
from mkv_ascend.layout.plan import make_plan
from mkv_ascend.layout.planning import CachedLayer, PlanInputs, plan
from mkv_ascend.layout.report import OtherGrouping, PlanReport
from mkv_ascend.layout.report_html import html
from mkv_ascend.layout.report_text import served_text, text
from mkv_ascend.layout.retention import Request, Retention, RetentionKind
from tests.support.plan_reports import REQUEST, dense, make_report, with_plan

READ = Path(__file__).parents[2] / "data" / "reports"


def windows_and_full() -> PlanReport:
    """Two kinds of attention in pages of several sizes: there are groupings to choose from."""
    found: list[tuple[LayerLayout, Retention]] = []
    for index in range(12):
        role = Role.TARGET if index < 9 else Role.DRAFT
        heads, name = 1 + index % 3, f"{role}.layers.{index}"
        kind = Kind.SLIDING_WINDOW if index % 2 else Kind.FULL_ATTENTION
        kept = Retention(RetentionKind.WINDOW, 300) if index % 2 else Retention(RetentionKind.ALL)
        found.append((dense(name, role, heads, kind), kept))
    layers = tuple(CachedLayer(*one, "ascend_gqa") for one in found)
    inputs = PlanInputs(layers, Request(5000, 1), 1, GroupingOptions(Objective.LEAST_MEMORY))
    return PlanReport(
        planned=plan(inputs), subjects=(), memory_bytes=None, other_absent="it was not asked"
    )


def cut_short() -> PlanReport:
    """What is said of a search that ended early, of one request of one token, and of an error."""
    report = replace(
        windows_and_full(), other=OtherGrouping(error="AssertionError (x.py:1)"), memory_bytes=2**28
    )
    grouping = report.grouping
    return with_plan(
        report,
        grouping=replace(
            grouping,
            exhaustive=False,
            bound_bytes=grouping.cost.held_bytes * 3 // 4,
            coarser=CoarserHits(512, grouping.cost),
        ),
        inputs=replace(report.planned.inputs, request=Request(1, 1)),
    )


def target_alone() -> PlanReport:
    layers = tuple(
        CachedLayer(dense(f"target.layers.{i}", Role.TARGET, 4), Retention(RetentionKind.ALL))
        for i in range(3)
    )
    inputs = PlanInputs(layers, REQUEST, 4, GroupingOptions(Objective.LEAST_MEMORY))
    return PlanReport(planned=plan(inputs), subjects=(("target", "Big"),), memory_bytes=2**30)


REPORTS: dict[str, Callable[[], PlanReport]] = {
    "states": lambda: make_report(
        other=OtherGrouping(groups=7, request_blocks=10, block_bytes=2**20), notes=("a note",)
    ),
    "small": lambda: make_report(memory_bytes=2**20),
    "windows": windows_and_full,
    "cut-short": cut_short,
    "target-alone": target_alone,
}


def is_as_read(name: str, shown: str, folder: Path) -> None:
    read, found = READ / name, folder / name
    found.write_text(shown, encoding="utf-8")
    before = read.read_text("utf-8") if read.exists() else ""
    assert shown == before, f"{read} is another one than {found}"


@pytest.mark.parametrize("name", REPORTS)
def test_text(name: str, tmp_path: Path) -> None:
    is_as_read(f"{name}.txt", text(REPORTS[name]()), tmp_path)


@pytest.mark.parametrize("name", ["states", "cut-short"])
def test_json(name: str, tmp_path: Path) -> None:
    shown = json.dumps(REPORTS[name]().to_dict(), indent=1, sort_keys=True)
    is_as_read(f"{name}.json", f"{shown}\n", tmp_path)


@pytest.mark.parametrize("name", ["states", "windows"])
def test_page(name: str, tmp_path: Path) -> None:
    is_as_read(f"{name}.html", html(REPORTS[name]()), tmp_path)


def test_a_plan_without_layers_has_no_line_and_no_drawing_of_any() -> None:
    """As of a model without a cache, in groups that vLLM gives."""
    empty = plan(PlanInputs((), REQUEST, 4, GroupingOptions(), groups=()))
    report = PlanReport(planned=empty, subjects=(), memory_bytes=None, other_absent="nobody asked")
    assert "Pools (0 B for each block id)\n\n" in text(report)
    assert "over 0 pools" in html(report)


def test_what_is_served(tmp_path: Path) -> None:
    full = [dense(f"target.layers.{i}", Role.TARGET, 4) for i in range(2)]
    window = [dense("draft.layers.0", Role.DRAFT, 1, Kind.SLIDING_WINDOW)]
    bound = make_plan([full, window]).bind(21)
    shown = served_text(bound, 1000, (8, 2), {"draft.layers.0": "ascend_gqa"})
    is_as_read("served.txt", f"{shown}\n", tmp_path)
