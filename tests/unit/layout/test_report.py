# SPDX-License-Identifier: Apache-2.0
"""What a report says is what its plan holds: numbers, text, and a map to scale."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import pytest

from mkv_ascend.layout.component import (
    Component,
    LayerLayout,
    StateExtent,
    Storage,
    TokenExtent,
)
from mkv_ascend.layout.demand import Holding, Request, Span
from mkv_ascend.layout.fitting import fitted_groups, need_of
from mkv_ascend.layout.grouping import GroupingOptions, Objective, group_layers
from mkv_ascend.layout.kind import Kind, Role
from mkv_ascend.layout.plan import make_plan
from mkv_ascend.layout.report import OtherGrouping, PlanReport
from mkv_ascend.layout.report_html import html
from mkv_ascend.layout.report_served import ServedPlan
from mkv_ascend.layout.report_svg import bar_parts
from mkv_ascend.layout.report_text import format_bytes, text

SVG = "{http://www.w3.org/2000/svg}"
XHTML = "{http://www.w3.org/1999/xhtml}"
REQUEST = Request(tokens=1024, tokens_per_step=4)


def dense(name: str, role: Role, heads: int, kind: Kind = Kind.FULL_ATTENTION) -> LayerLayout:
    parts = tuple(Component(part, "bfloat16", TokenExtent(128, heads, 64)) for part in "kv")
    page = sum(part.bytes_per_block for part in parts)
    return LayerLayout(name, role, kind, parts, Storage.SPLIT, page, 128, kernel_block=128)


def paged(name: str, page: int) -> LayerLayout:
    parts = (
        Component("latent", "bfloat16", TokenExtent(128, 1, 64)),
        Component("indexer_k", "int8", TokenExtent(128, 1, 128)),
    )
    return LayerLayout(name, Role.TARGET, Kind.COMPRESSED_MLA, parts, Storage.PAGED, page, 128)


def state(name: str) -> LayerLayout:
    parts = (
        Component("conv", "bfloat16", StateExtent((3, 64))),
        Component("ssm", "bfloat16", StateExtent((4, 64, 16))),
    )
    page = sum(part.bytes_per_block for part in parts)
    return LayerLayout(name, Role.TARGET, Kind.MAMBA, parts, Storage.PLANAR, page, 128)


LAYERS = (
    *((dense(f"target.layers.{i}", Role.TARGET, 4), Holding(Span.ALL)) for i in range(3)),
    (paged("target.layers.3", 40_000), Holding(Span.ALL)),
    (state("target.layers.4"), Holding(Span.STATE, 1)),
    (dense("draft.layers.0", Role.DRAFT, 1), Holding(Span.ALL)),
    (dense("draft.<1>", Role.DRAFT, 1, Kind.SLIDING_WINDOW), Holding(Span.WINDOW, 200)),
)


def make_report(objective: Objective = Objective.LEAST_MEMORY, **more: object) -> PlanReport:
    needs = [need_of(layout, holding) for layout, holding in LAYERS]
    options = GroupingOptions(objective)
    grouping = group_layers(needs, REQUEST, options)
    layouts = {layout.layer: layout for layout, _ in LAYERS}
    plan = make_plan(fitted_groups(layouts, grouping), block_outer=True)
    fields: dict[str, object] = {
        "subjects": (("target", "Big & Co (llama)"), ("draft", "Small (llama)")),
        "backends": {layout.layer: f"backend_of_{layout.kind}" for layout, _ in LAYERS},
        "memory_bytes": 64 * 2**20,
        **more,
    }
    return PlanReport(request=REQUEST, grouping=grouping, plan=plan, **fields)  # type: ignore[arg-type]


def test_numbers_follow_from_the_plan() -> None:
    report = make_report()
    per_block = report.plan.bytes_per_block
    assert report.request_bytes == report.grouping.cost.held_bytes
    blocks = report.num_blocks
    assert blocks is not None
    assert blocks * per_block <= 64 * 2**20 < (blocks + 1) * per_block + report.plan.overhead_bytes
    # One block is vLLM's own, none of a request.
    assert report.max_concurrency == (blocks - 1) / report.request_blocks


def test_without_a_memory_there_are_no_blocks() -> None:
    report = make_report(memory_bytes=None)
    assert (report.num_blocks, report.max_concurrency) == (None, None)
    assert json.loads(json.dumps(report.to_plain()))["num_blocks"] is None


def test_memory_for_no_block_at_all_holds_no_request() -> None:
    report = make_report(memory_bytes=1)
    assert (report.num_blocks, report.max_concurrency) == (0, 0)


def test_memory_that_an_engine_would_refuse_is_said_to_be() -> None:
    report = make_report(memory_bytes=None)
    block = report.plan.bytes_per_block
    enough = (report.request_blocks + 1) * block + report.plan.overhead_bytes
    assert make_report(memory_bytes=enough).refusal is None
    assert report.refusal is None
    small = make_report(memory_bytes=enough - 1)
    needed = f"one request of 1024 tokens needs {report.request_blocks + 1} blocks"
    assert small.refusal is not None
    assert needed in small.refusal
    assert f"refused at start-up: {small.refusal}\n" in text(small)
    assert needed in html(small)
    assert small.to_plain()["refusal"] == small.refusal


def test_json_has_every_layer_with_its_bytes() -> None:
    report = make_report()
    plain = json.loads(json.dumps(report.to_plain()))
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
    assert plain["other_objective"]["objective"] == "balanced"


def test_pools_have_their_reason() -> None:
    plain = make_report().to_plain()
    reasons = {pool["storage"]: pool["reason"] for pool in plain["pools"]}
    assert "take strides" in reasons["paged"]
    assert "contiguous" in reasons["split"]


def test_text_names_layers_groups_and_the_price_of_the_other_objective() -> None:
    report = make_report(Objective.FEWEST_GROUPS)
    shown = text(report)
    for part in report.group_parts():
        assert f"{part.folded} ({len(part.layers)})" in shown
    assert "; target.layers.0-2\n" in shown
    assert "backend_of_sliding_window" in shown
    assert "this plan (fewest_groups)" in shown
    row = next(line for line in shown.splitlines() if line.startswith("  least_memory"))
    assert row.split()[1] == str(report.grouping.other_cost.groups)
    assert row.split()[-1] == f"{report.grouping.other_cost.requests_in(report.memory_bytes):.2f}"
    groups = report.grouping.cost.groups
    found = report.to_plain()["alternatives"]
    chosen = next(cost for cost in found if cost["groups"] == groups)
    assert chosen["max_concurrency"] == report.max_concurrency
    assert "vLLM's own grouping is not shown: it was not asked for" in shown


def test_vllm_beside_the_plan_is_measured_alike() -> None:
    other = OtherGrouping(groups=7, request_blocks=10, block_bytes=2**20)
    report = make_report(other=other)
    assert (report.other_num_blocks, report.other_max_concurrency) == (64, 6.3)
    row = next(line for line in text(report).splitlines() if "vLLM's own" in line)
    assert row.split()[2:] == ["7", "10.0", "MiB", row.split()[5], "64", "6.30"]


def test_an_error_of_vllm_is_shown_and_no_number() -> None:
    report = make_report(other=OtherGrouping(error="AssertionError (x.py:1)"))
    shown = text(report)
    assert "vLLM's own grouping raises AssertionError (x.py:1)" in shown
    assert report.other_max_concurrency is None
    assert report.to_plain()["vllm"] == {"error": "AssertionError (x.py:1)"}


def test_what_is_served_is_a_few_lines() -> None:
    """Two dense layers of the target, one of the draft with its window in the second group."""
    full, window = (
        [dense(f"target.layers.{i}", Role.TARGET, 4) for i in range(2)],
        [dense("draft.layers.0", Role.DRAFT, 1, Kind.SLIDING_WINDOW)],
    )
    page, small = full[0].page_bytes, window[0].page_bytes
    bound = make_plan([full, window]).bind(21)
    served = ServedPlan(bound, 1000, (8, 2), {"draft.layers.0": "ascend_gqa"})
    assert served.bytes_per_block == 2 * page + small
    assert served.request_bytes == 10 * served.bytes_per_block
    used = 8 * 2 * page + 2 * small
    assert served.padding_fraction == pytest.approx(1 - used / served.request_bytes)
    assert served.max_concurrency == (21 - 1) / (8 + 2)
    lines = served.text().splitlines()
    assert lines[0].startswith("KV cache plan: 2 groups, 21 blocks of 288.0 KiB, 5.9 MiB in all")
    rows = [line.split() for line in lines]
    groups = "0 128 8 11.1% target.layers.0-1 (2) target full_attention - 128.0 KiB"
    assert rows[2] == groups.split()
    groups = "1 128 2 88.9% draft.layers.0 (1) draft sliding_window ascend_gqa 32.0 KiB"
    assert rows[3] == groups.split()
    assert lines[-1] == (
        "One request of 1000 tokens takes 10 blocks (2.8 MiB, 26.7% padding): 2.00 at once"
    )
    assert len(lines) < 9


@pytest.mark.parametrize(
    ("number", "shown"),
    [(1, "1 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (2**20, "1.0 MiB"), (3 * 2**30, "3.0 GiB")],
)
def test_bytes_are_shown_in_the_largest_unit(number: int, shown: str) -> None:
    assert format_bytes(number) == shown


def svg_of(page: str) -> ElementTree.Element:
    # A <!DOCTYPE html> is no XML of its own; the rest of the page is.
    root = ElementTree.fromstring(page.removeprefix("<!DOCTYPE html>\n"))
    found = [
        element for element in root.iter(f"{SVG}svg") if "map" in element.get("class", "").split()
    ]
    assert len(found) == 1
    return found[0]


def test_the_page_needs_no_network() -> None:
    page = html(make_report())
    for word in ("src=", "href=", "@import", "url(http", "<script"):
        assert word not in page
    assert "Big &amp; Co" in page


def test_the_page_is_for_dark_mode_and_print_too() -> None:
    page = html(make_report())
    assert "@media (prefers-color-scheme: dark)" in page
    assert "@media print" in page


def test_every_layer_is_on_the_map_and_reachable() -> None:
    report = make_report()
    layers = [
        element
        for element in svg_of(html(report)).iter(f"{SVG}g")
        if element.get("data-layer") is not None
    ]
    assert {element.get("data-layer") for element in layers} == {
        layout.layer for layout, _ in LAYERS
    }
    assert len(layers) == len(LAYERS)
    for element in layers:
        name = element.get("data-layer")
        assert name is not None
        assert element.get("tabindex") == "0"
        assert (element.findtext(f"{SVG}title") or "").startswith(f"{name}: ")
        assert element.get("aria-label") == element.findtext(f"{SVG}title")
        role = report.plan.layout_of[name].role
        assert element.get("class") == f"layer {role}"


def test_widths_are_to_scale_and_inside_their_pool() -> None:
    report = make_report()
    root = svg_of(html(report))
    scale = float(root.get("data-pixels-per-byte", "nan"))
    pools = [element for element in root.iter(f"{SVG}g") if element.get("data-pool")]
    assert len(pools) == len(report.plan.pools)
    for element, pool in zip(pools, report.plan.pools, strict=True):
        idle = list(element.findall(f"{SVG}rect"))
        assert len(idle) == len(report.plan.groups)
        left, width = float(idle[0].get("x", "")), float(idle[0].get("width", ""))
        assert width == pytest.approx(pool.bytes_per_block * scale, abs=0.001)
        for layer in element.findall(f"{SVG}g"):
            parts = [r for r in layer.findall(f"{SVG}rect") if "part" in r.get("class", "")]
            drawn = sum(int(part.get("data-bytes", "")) for part in parts)
            name = layer.get("data-layer", "")
            assert drawn == report.plan.layout_of[name].used_bytes
            for part in parts:
                x, wide = float(part.get("x", "")), float(part.get("width", ""))
                assert wide == pytest.approx(int(part.get("data-bytes", "")) * scale, abs=0.001)
                assert left - 0.001 <= x
                assert x + wide <= left + width + 0.002


def test_layers_of_a_group_do_not_cover_each_other() -> None:
    report = make_report()
    for pool in report.plan.pools:
        for group in range(len(report.plan.groups)):
            taken = sorted(
                (part.start, part.start + part.length)
                for member in pool.layers
                if member.group == group
                for part in bar_parts(pool, member)
            )
            ends = [0, *(end for _, end in taken)]
            assert all(start >= end for (start, _), end in zip(taken, ends, strict=False))
            assert ends[-1] <= pool.bytes_per_block


def test_buffers_are_drawn_one_after_another() -> None:
    layout = dense("target.layers.0", Role.TARGET, 4)
    plan = make_plan([[layout]])
    (pool,) = plan.pools
    assert [(p.component, p.start, p.length) for p in bar_parts(pool, pool.layers[0])] == [
        ("k", 0, 65536),
        ("v", 65536, 65536),
    ]


def test_rows_of_a_page_are_drawn_where_they_lie() -> None:
    """A block of two kernel blocks: the rows of both layers take turns."""
    parts = (Component("latent", "bfloat16", TokenExtent(128, 1, 64)),)
    layers = [
        LayerLayout(
            name,
            Role.TARGET,
            Kind.COMPRESSED_MLA,
            parts,
            Storage.PAGED,
            128 * 64 * 2,
            128,
            kernel_block=64,
        )
        for name in ("target.layers.0", "target.layers.1")
    ]
    (pool,) = make_plan([layers], block_outer=True).pools
    row = 64 * 64 * 2
    found = [[(p.start, p.length) for p in bar_parts(pool, member)] for member in pool.layers]
    assert found == [[(0, row), (2 * row, row)], [(row, row), (3 * row, row)]]
