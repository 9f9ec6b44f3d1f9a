# SPDX-License-Identifier: Apache-2.0
"""What a report says is what its plan holds: numbers, text, and a page."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import pytest

from mkv_ascend.commands.plan_report import (
    FORMAT_VERSION,
    PlanReport,
    answer,
    comparison,
    group_rows,
    html,
    text,
)
from mkv_ascend.layout.component import LayerLayout
from mkv_ascend.layout.grouping import Cost, Grouping
from mkv_ascend.layout.kind import Role
from mkv_ascend.layout.page_planning import plan_pages
from mkv_ascend.layout.plan import make_plan
from mkv_ascend.layout.planning import PlanInputs, plan, requirements_of
from mkv_ascend.layout.report import OtherGrouping, pool_lines, served_groups
from mkv_ascend.layout.requirements import Retention, RetentionKind
from tests.support.plan_reports import LAYERS, REQUEST, dense, make_report, with_plan


def test_numbers_follow_from_the_plan() -> None:
    report = make_report()
    per_block = report.plan.bytes_per_block
    assert report.request_bytes == report.grouping.cost.held_bytes
    blocks = report.num_blocks
    assert blocks is not None
    assert blocks * per_block <= 64 * 2**20 < (blocks + 1) * per_block
    # One block is vLLM's own, none of a request.
    pages = sum(group.blocks / group.shape.blocks for group in report.grouping.groups)
    assert report.max_concurrency == (blocks - 1) / pages


def test_without_a_memory_there_are_no_blocks() -> None:
    report = make_report(memory_bytes=None)
    assert (report.num_blocks, report.max_concurrency) == (None, None)
    assert json.loads(json.dumps(report.to_dict()))["num_blocks"] is None


def test_memory_for_no_block_at_all_holds_no_request() -> None:
    report = make_report(memory_bytes=1)
    assert (report.num_blocks, report.max_concurrency) == (0, 0)


def test_memory_that_an_engine_would_refuse_is_said_to_be() -> None:
    report = make_report(memory_bytes=None)
    block = report.plan.bytes_per_block
    # vLLM's own, and one that vllm-ascend asks for beside states.
    blocks = report.request_blocks + 2
    enough = blocks * block
    assert make_report(memory_bytes=enough).refusal is None
    assert report.refusal is None
    small = make_report(memory_bytes=enough - 1)
    needed = f"one request of 1024 tokens needs {blocks} pages"
    assert small.refusal is not None
    assert needed in small.refusal
    assert f"refused at start-up: {small.refusal}\n" in text(small)
    assert needed in html(small)
    assert small.to_dict()["refusal"] == small.refusal


def test_json_says_what_was_asked_and_what_it_costs() -> None:
    report = make_report(notes=("a note",))
    plain, grouping = report.to_dict(), report.grouping
    assert plain["format"] == FORMAT_VERSION
    assert plain["subjects"] == {"target": "Big & Co (llama)", "draft": "Small (llama)"}
    assert plain["request"] == {
        "tokens": 1024,
        "tokens_per_step": 4,
        "blocks": grouping.cost.pages,
        "bytes": grouping.cost.held_bytes,
        "needed_bytes": grouping.cost.needed_bytes,
        "admission_blocks": sum(report.planned.admission_pages),
    }
    assert plain["padding_fraction"] == grouping.cost.padding_fraction
    assert plain["prefix_hit_tokens"] == grouping.prefix_hit_tokens
    assert plain["bytes_per_block"] == report.plan.bytes_per_block
    assert plain["memory_bytes"] == 64 * 2**20
    assert plain["num_blocks"] == 64 * 2**20 // report.plan.bytes_per_block
    assert plain["max_concurrency"] == report.max_concurrency
    assert plain["notes"] == ["a note"]


def test_json_has_every_layer_with_its_bytes() -> None:
    report = make_report()
    plain = json.loads(json.dumps(report.to_dict()))
    listed = {layer["name"]: layer for group in plain["groups"] for layer in group["layers"]}
    assert listed.keys() == {layout.layer for layout, _ in LAYERS}
    assert listed["target.layers.0"]["page_bytes"] == 2 * 128 * 4 * 64 * 2
    assert listed["target.layers.3"]["padding_bytes"] == 40_000 - 128 * 64 * 2 - 128 * 128
    placed = {
        layer["name"]: layer["components"] for pool in plain["pools"] for layer in pool["layers"]
    }
    assert placed["target.layers.4"]["conv"]["bytes"] == 3 * 64 * 2
    for group in plain["groups"]:
        assert group["used_bytes"] + group["idle_bytes"] == plain["bytes_per_block"]
    assert listed["draft.<1>"] == {
        "name": "draft.<1>",
        "role": "draft",
        "kind": "sliding_window",
        "backend": "backend_of_sliding_window",
        "page_bytes": 2 * 128 * 64 * 2,
        "padding_bytes": 0,
    }
    chosen = zip(plain["groups"], report.plan.groups, report.grouping.groups, strict=True)
    for group, planned, held in chosen:
        assert group["tokens_per_block"] == planned.tokens_per_block
        assert group["kernel_block"] == planned.kernel_block
        assert group["blocks"] == held.blocks
        assert group["has_draft"] == held.has_draft
    admitted = [group["admission_blocks"] for group in plain["groups"]]
    assert admitted == list(report.planned.admission_pages)


def test_pools_have_their_reason() -> None:
    plain = make_report().to_dict()
    (pool,) = plain["pools"]
    assert (pool["storage"], "several blocks of a group" in pool["reason"]) == ("split", True)


def test_text_names_layers_groups_and_costs() -> None:
    report = make_report()
    shown = text(report)
    for part in report.group_parts():
        assert f"{part.abbreviated} ({len(part.layers)})" in shown
    assert "backend_of_sliding_window" in shown
    row = next(line for line in shown.splitlines() if line.startswith("  this plan"))
    assert row.split()[2] == str(report.grouping.cost.groups)
    assert row.split()[-1] == f"{report.max_concurrency:.2f}"
    assert "vLLM's own grouping is not shown: it was not asked for" in shown


def test_vllm_beside_the_plan_is_measured_alike() -> None:
    other = OtherGrouping(groups=7, request_blocks=10, block_bytes=2**20)
    report = make_report(other=other)
    shown = report.to_dict()["vllm"]
    assert (shown["num_blocks"], shown["max_concurrency"]) == (64, 6.3)
    row = next(line for line in text(report).splitlines() if "vLLM's own" in line)
    assert row.split()[2:] == ["7", "10.0", "MiB", row.split()[5], "64", "6.30"]


def test_an_error_of_vllm_is_shown_and_no_number() -> None:
    report = make_report(other=OtherGrouping(error="AssertionError (x.py:1)"))
    shown = text(report)
    assert "vLLM's own grouping raises AssertionError (x.py:1)" in shown
    assert report.other_cost is None
    assert report.to_dict()["vllm"] == {"error": "AssertionError (x.py:1)"}


@pytest.mark.parametrize(
    ("cost", "shown"),
    [
        (Cost(1, 3, 2**20, 3 * 2**20), "1 group, 3 MiB, 0.0% padding"),
        (Cost(2, 2, 2 * 2**20, 3 * 2**20), "2 groups, 4 MiB, 25.0% padding"),
    ],
)
def test_a_cost_is_said_in_a_line(cost: Cost, shown: str) -> None:
    assert str(cost) == shown


def test_a_plan_without_layers_has_no_line_and_no_drawing_of_any() -> None:
    """As of a model without a cache, in groups that vLLM gives."""
    empty = plan(PlanInputs((), REQUEST, 4, groups=()))
    report = PlanReport(planned=empty, subjects=(), memory_bytes=None, other_absent="nobody asked")
    assert "Pools (0 B for each block)\n\n" in text(report)
    assert "What a block holds (0 B)" in html(report)


def page_of(report: PlanReport) -> ElementTree.Element:
    # A <!DOCTYPE html> is no XML of its own; the rest of the page is.
    return ElementTree.fromstring(html(report).removeprefix("<!DOCTYPE html>\n"))


def test_the_page_needs_no_network() -> None:
    page = html(make_report())
    for word in ("src=", "href=", "@import", "url(http", "<script"):
        assert word not in page
    assert "Big &amp; Co" in page


def test_every_cell_of_the_text_is_on_the_page() -> None:
    report = make_report()
    page = page_of(report)
    cells = ["".join(e.itertext()) for e in page.iter("td")]
    for row in (*group_rows(report)[1:], *comparison(report)[1:]):
        assert any(cells[at : at + len(row)] == list(row) for at in range(len(cells))), row
    for pool in report.plan.pools:
        assert {line.strip() for line in pool_lines(pool, report.plan.shapes)} <= set(cells)


def one_group(layers: list[LayerLayout]) -> PlanReport:
    """Layers that hold all tokens, in one KV group."""
    needs = [requirements_of(layout, Retention(RetentionKind.ALL)) for layout in layers]
    (group,) = plan_pages(needs, REQUEST).groups
    cost = Cost(1, group.pages(REQUEST), sum(layout.page_bytes for layout in layers))
    grouping = Grouping((group,), cost)
    return with_plan(make_report(), grouping=grouping, plan=make_plan([layers]))


def test_a_bar_is_what_a_block_holds_to_scale() -> None:
    report = make_report()
    bars = [e for e in page_of(report).iter("div") if e.get("class") == "bar"]
    drawn = [
        {part.get("class"): part.get("style", "").removeprefix("flex: ") for part in bar}
        for bar in bars
    ]
    assert drawn == [
        {
            role: str(size)
            for role, size in (*group["used_bytes"].items(), ("idle", group["idle_bytes"]))
        }
        for group in served_groups(report.plan.bind(7))
    ]
    for bar in drawn:
        assert sum(map(int, bar.values())) == report.plan.bytes_per_block


def test_the_first_sentence_says_whether_it_fits_and_what_the_draft_costs() -> None:
    report = make_report(memory_bytes=64 * 2**20)
    at_once = report.max_concurrency
    assert at_once is not None
    words = answer(report)
    assert words.startswith(f"It fits: 64.0 MiB hold {at_once:.1f} requests of 1024 tokens at once")
    assert "The draft costs " in words
    assert text(report).startswith(words)
    page = page_of(report)
    assert next(e.text for e in page.iter("p")) == words
    small = answer(make_report(memory_bytes=2**20))
    assert small.startswith("It does not fit: 1.0 MiB hold no request of 1024 tokens.")
    assert "give --memory to see" in answer(make_report(memory_bytes=None))


def test_a_draft_costs_what_its_layers_add() -> None:
    """Two layers of the target with 128 KiB a block, one of the draft with 32, in one group."""
    layers = [dense(f"t{i}", Role.TARGET, 4) for i in range(2)] + [dense("d", Role.DRAFT, 1)]
    report = one_group(layers)
    without = report.without_draft()
    assert without is not None
    blocks = REQUEST.tokens // 128
    assert report.request_bytes - without.held_bytes == blocks * 32 * 1024
    assert without.requests_in(64 * 2**20) == (64 * 2**20 // (256 * 1024) - 1) / blocks
    alone = with_plan(report, plan=make_plan([layers[:2]]))
    assert alone.without_draft() is None
