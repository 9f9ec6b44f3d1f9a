# SPDX-License-Identifier: Apache-2.0
"""A plan's report as one HTML file: ``report.html.jinja`` with what is computed here.

The memory map shows what one block id holds in every pool, for every KV group, to scale. Pools that
are alike are drawn once. Of a pool each KV group has a bar, as long as the pool's bytes per block,
with the components of the group's layers where they lie while the block is that group's. What is
left of a bar lies idle and is hatched. The words stand beside the bars: on a narrow screen they
keep their size, and nothing has to be pointed at.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2

from mkv_ascend.layout.layer_ranges import abbreviated_names
from mkv_ascend.layout.placement import PlacedLayer, Pool
from mkv_ascend.layout.report import PlanReport
from mkv_ascend.layout.report_text import (
    answer,
    closing_lines,
    comparison,
    count,
    format_bytes,
    group_rows,
    measured_with,
    pools_of,
)

TEMPLATE = Path(__file__).with_name("report.html.jinja")
SHADES = 3
"""Later components of a layer are paler; so many shades are told apart."""


@dataclass(frozen=True)
class BarPart:
    """A stretch of a pool's bytes, from ``start``, that one component of a layer has."""

    component: str
    start: int
    length: int


@dataclass(frozen=True)
class DrawnPool:
    """Pools (indices) that look alike: the same kinds of layers lie at the same places."""

    indices: tuple[int, ...]
    pool: Pool
    layers: tuple[tuple[str, ...], ...]
    """For each layer of ``pool``, those that lie at its place in any of these pools."""


def html(report: PlanReport) -> str:
    """The whole file; it is well-formed XML too."""
    subjects = dict(report.subjects)
    models = [subjects[role].split(" (")[0] for role in ("target", "draft") if role in subjects]
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    size = format_bytes(report.plan.bytes_per_block)
    return template.render(
        title=" + ".join(models) or "KV cache plan",
        answer=answer(report),
        subjects=[*report.subjects, ("measured with", f"one request of {measured_with(report)}")],
        comparison=comparison(report),
        closing=closing_lines(report),
        map_words=(
            f"One block id has {size} over {count(len(report.plan.pools), 'pool')}, drawn to "
            "scale; pools that are alike are drawn once. Each bar is a KV group: what its layers "
            "keep while the block is theirs."
        ),
        figures=_figures(report),
        groups=group_rows(report),
        pools=[
            ("what", "why, and which layers"),
            *(pools_of(part) for part in report.pool_parts()),
        ],
    )


def bar_parts(pool: Pool, member: PlacedLayer) -> Iterator[BarPart]:
    """Where a layer lies in the bytes of one block of ``pool``, buffers one after another."""
    for part in member.placements:
        if part.overlay:
            continue
        before = sum(pool.buffers[: part.buffer])
        if not pool.storage.is_strided:
            start = before + part.start_per_block
            yield BarPart(part.component, start, part.rows * part.row_bytes)
            continue
        for row in range(part.rows):
            start = before + part.start_bytes + row * part.row_stride
            yield BarPart(part.component, start, part.row_bytes)


def drawn_pools(report: PlanReport) -> list[DrawnPool]:
    """The pools of the plan, those that look alike as one, in the order of the first."""
    alike: dict[object, list[int]] = {}
    for index, pool in enumerate(report.plan.pools):
        key = (pool.storage, pool.buffers, tuple(_look(report, pool)))
        alike.setdefault(key, []).append(index)
    found = []
    for indices in alike.values():
        pools = [_in_order(report, report.plan.pools[index]) for index in indices]
        names = zip(*([member.layer for member in pool] for pool in pools), strict=True)
        found.append(
            DrawnPool(tuple(indices), report.plan.pools[indices[0]], tuple(map(tuple, names)))
        )
    return found


def _in_order(report: PlanReport, pool: Pool) -> list[PlacedLayer]:
    """The layers of a pool by group and place."""
    return sorted(pool.layers, key=lambda x: (x.group, next(bar_parts(pool, x)).start))


def _look(report: PlanReport, pool: Pool) -> Iterator[object]:
    for member in _in_order(report, pool):
        layout = report.plan.layout_of[member.layer]
        backend = report.backends.get(member.layer)
        yield member.group, layout.role, layout.kind, backend, tuple(bar_parts(pool, member))


def _figures(report: PlanReport) -> Iterator[dict[str, Any]]:
    """What the template draws of each pool."""
    widest = max((pool.bytes_per_block for pool in report.plan.pools), default=1)
    for drawn in drawn_pools(report):
        size, number = drawn.pool.bytes_per_block, len(drawn.indices)
        words = f"{count(number, 'pool')}: {drawn.pool.storage}, {format_bytes(size)} a block"
        if number > 1:
            words += f" each, {format_bytes(size * number)} in all"
        bars: list[list[dict[str, Any]]] = [[] for _ in report.plan.groups]
        for member, names in zip(_in_order(report, drawn.pool), drawn.layers, strict=True):
            bars[member.group].append(_drawn(report, drawn.pool, member, names))
        yield {
            "indices": drawn.indices,
            "words": words,
            "percent": f"{100 * size / widest:.3f}",
            "size": size,
            "bars": bars,
        }


def _drawn(
    report: PlanReport, pool: Pool, member: PlacedLayer, names: Sequence[str]
) -> dict[str, Any]:
    """What the template draws of a layer, and of those at its place in other pools."""
    layout = report.plan.layout_of[member.layer]
    parts = list(bar_parts(pool, member))
    sizes: dict[str, int] = {}
    for part in parts:
        sizes[part.component] = sizes.get(part.component, 0) + part.length
    shades = {name: min(index, SHADES) for index, name in enumerate(sizes)}
    components = ", ".join(f"{name} {format_bytes(size)}" for name, size in sizes.items())
    backend = report.backends.get(member.layer, "no backend")
    layers = ", ".join(abbreviated_names(names))
    return {
        "role": layout.role,
        "names": names,
        "words": f"{layers}: {layout.role}, {layout.kind}, {backend}; {components}",
        "parts": [
            {"shade": shades[part.component], "start": part.start, "length": part.length}
            for part in parts
        ],
    }
