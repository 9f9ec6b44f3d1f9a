# SPDX-License-Identifier: Apache-2.0
"""Layouts of a few layers, and reports of plans of them."""

from __future__ import annotations

from dataclasses import replace

from mkv_ascend.commands.plan_report import PlanReport
from mkv_ascend.layout.component import (
    Component,
    LayerLayout,
    StateExtent,
    Storage,
    TokenExtent,
)
from mkv_ascend.layout.kind import Kind, Role
from mkv_ascend.layout.planning import CachedLayer, PlanInputs, plan
from mkv_ascend.layout.requirements import Request, Retention, RetentionKind

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
    return LayerLayout(name, Role.TARGET, Kind.MAMBA, parts, Storage.SPLIT, page, 128)


LAYERS = (
    *(
        (dense(f"target.layers.{i}", Role.TARGET, 4), Retention(RetentionKind.ALL))
        for i in range(3)
    ),
    (paged("target.layers.3", 40_000), Retention(RetentionKind.ALL)),
    (state("target.layers.4"), Retention(RetentionKind.STATE, 1, asked_blocks=1)),
    (dense("draft.layers.0", Role.DRAFT, 1), Retention(RetentionKind.ALL)),
    (dense("draft.<1>", Role.DRAFT, 1, Kind.SLIDING_WINDOW), Retention(RetentionKind.WINDOW, 200)),
)


def make_report(**more: object) -> PlanReport:
    layers = tuple(
        CachedLayer(layout, retention, f"backend_of_{layout.kind}") for layout, retention in LAYERS
    )
    inputs = PlanInputs(layers, REQUEST, REQUEST.tokens_per_step)
    fields: dict[str, object] = {
        "subjects": (("target", "Big & Co (llama)"), ("draft", "Small (llama)")),
        "memory_bytes": 64 * 2**20,
        **more,
    }
    return PlanReport(planned=plan(inputs), **fields)  # type: ignore[arg-type]


def with_plan(report: PlanReport, **changes: object) -> PlanReport:
    """The report of another grouping, or of other pools."""
    return replace(report, planned=replace(report.planned, **changes))  # type: ignore[arg-type]
