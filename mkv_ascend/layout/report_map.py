# SPDX-License-Identifier: Apache-2.0
"""The memory map of a plan: what one block id holds in every pool, for every KV group, to scale.

Pools that are alike are drawn once. Of a pool each KV group has a bar, as long as the pool's bytes
per block, with the components of the group's layers where they lie while the block is that group's.
What is left of a bar lies idle and is hatched. The words stand beside the bars: on a narrow screen
they keep their size, and nothing has to be pointed at.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from mkv_ascend.layout.component import Storage
from mkv_ascend.layout.layer_ranges import abbreviated_names
from mkv_ascend.layout.placement import PlacedLayer, Placement, Pool
from mkv_ascend.layout.report import PlanReport
from mkv_ascend.layout.report_text import count, format_bytes

__all__ = ["BarPart", "DrawnPool", "bar_parts", "drawn_pools", "memory_map"]

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


def bar_parts(pool: Pool, member: PlacedLayer) -> Iterator[BarPart]:
    """Where a layer lies in the bytes of one block of ``pool``, buffers one after another."""
    for part in member.placements:
        if part.overlay:
            continue
        before = sum(pool.buffers[: part.buffer])
        yield from _stretches(pool, part, before)


def _stretches(pool: Pool, part: Placement, before: int) -> Iterator[BarPart]:
    if pool.storage is not Storage.PAGED:
        yield BarPart(part.component, before + part.start_per_block, part.rows * part.row_bytes)
        return
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


def memory_map(report: PlanReport) -> str:
    """The map as HTML."""
    widest = max((pool.bytes_per_block for pool in report.plan.pools), default=1)
    return "\n".join(_drawn(report, drawn, widest) for drawn in drawn_pools(report))


def _drawn(report: PlanReport, drawn: DrawnPool, widest: int) -> str:
    size, number = drawn.pool.bytes_per_block, len(drawn.indices)
    words = f"{count(number, 'pool')}: {drawn.pool.storage}, {format_bytes(size)} a block"
    if number > 1:
        words += f" each, {format_bytes(size * number)} in all"
    rows = [
        _row(report, drawn, group, 100 * size / widest) for group in range(len(report.plan.groups))
    ]
    indices = " ".join(map(str, drawn.indices))
    return (
        f'<figure class="pool" data-pools="{indices}"><figcaption>{escape(words)}</figcaption>\n'
        + "\n".join(rows)
        + "\n</figure>"
    )


def _row(report: PlanReport, drawn: DrawnPool, group: int, percent: float) -> str:
    """A KV group's bar with what it shows."""
    members = [
        (member, names)
        for member, names in zip(_in_order(report, drawn.pool), drawn.layers, strict=True)
        if member.group == group
    ]
    words = "; ".join(_words(report, drawn.pool, *pair) for pair in members) or "idle"
    rects = "".join(_rects(report, drawn.pool, *pair) for pair in members)
    size = drawn.pool.bytes_per_block
    return (
        f'<div class="group" data-group="{group}">'
        f'<svg xmlns="http://www.w3.org/2000/svg" class="bar" aria-hidden="true" '
        f'style="width: {percent:.3f}%" '
        f'viewBox="0 0 {size} 1" preserveAspectRatio="none">{rects}</svg>'
        f"<p><b>group {group}</b> {escape(words)}</p></div>"
    )


def _rects(report: PlanReport, pool: Pool, member: PlacedLayer, names: Sequence[str]) -> str:
    role = report.plan.layout_of[member.layer].role
    parts = list(bar_parts(pool, member))
    order = list(dict.fromkeys(part.component for part in parts))
    found = "".join(
        f'<rect class="part shade{min(order.index(part.component), SHADES)}" x="{part.start}" '
        f'width="{part.length}" height="1"/>'
        for part in parts
    )
    layers = escape(" ".join(names))
    return f'<g class="layer {role}" data-layers="{layers}">{found}</g>'


def _words(report: PlanReport, pool: Pool, member: PlacedLayer, names: Sequence[str]) -> str:
    layout = report.plan.layout_of[member.layer]
    sizes: dict[str, int] = {}
    for part in bar_parts(pool, member):
        sizes[part.component] = sizes.get(part.component, 0) + part.length
    components = ", ".join(f"{name} {format_bytes(size)}" for name, size in sizes.items())
    backend = report.backends.get(member.layer, "no backend")
    layers = ", ".join(abbreviated_names(names))
    return f"{layers}: {layout.role}, {layout.kind}, {backend}; {components}"
