# SPDX-License-Identifier: Apache-2.0
"""The memory map of a plan: what one block id holds in every pool, for every KV group, to scale.

A pool is a bar, as long as its bytes per block; bars stand side by side and wrap like words. In a
bar each KV group has a row: the components of its layers where they lie while the block is that
group's. What is left of the row lies idle and is hatched.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape

from mkv_ascend.layout.component import Storage
from mkv_ascend.layout.placement import PlacedLayer, Placement, Pool
from mkv_ascend.layout.report import PlanReport
from mkv_ascend.layout.report_text import format_bytes

__all__ = ["BarPart", "bar_parts", "memory_map"]

WIDTH = 1080.0
MARGIN = 64.0
"""Left of the bars, for the names of groups."""
GAP = 6.0
ROW = 16.0
HEAD = 16.0
"""Above a bar, for the name of its pool."""
FOOT = 26.0
"""Below a line of bars, for the layer that is pointed at or in focus."""
LINES = 6
"""About how many lines of bars a map has."""
NAME_WIDTH = 46.0
"""Narrower bars have only their number above them."""
NUMBER_WIDTH = 18.0
"""Still narrower ones have nothing."""


@dataclass(frozen=True)
class BarPart:
    """A stretch of a pool's bytes, from ``start``, that one component of a layer has."""

    component: str
    start: int
    length: int


@dataclass(frozen=True)
class _Bar:
    index: int
    pool: Pool
    x: float
    line: int


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


def memory_map(report: PlanReport) -> str:
    """The map as one SVG element."""
    scale = _scale(report)
    bars = list(_bars(report, scale))
    groups = len(report.plan.groups)
    lines = bars[-1].line + 1 if bars else 0
    line_height = HEAD + groups * ROW + FOOT
    height = lines * line_height
    body = [_defs()]
    for line in range(lines):
        body += _group_names(line * line_height, groups)
    for bar in bars:
        body += _bar(report, bar, scale, bar.line * line_height)
    label = "Memory map: the bytes of one block id in every pool, a row for each KV group"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="map" role="group" aria-label="{label}" '
        f'viewBox="0 0 {MARGIN + WIDTH:.0f} {height:.0f}" data-pixels-per-byte="{scale!r}">\n'
        + "\n".join(body)
        + "\n</svg>"
    )


def _scale(report: PlanReport) -> float:
    """Pixels per byte: the widest pool fits a line, and all pools fit about ``LINES`` lines."""
    widest = max((pool.bytes_per_block for pool in report.plan.pools), default=1)
    return min(WIDTH / widest, WIDTH * LINES / max(report.plan.bytes_per_block, 1))


def _bars(report: PlanReport, scale: float) -> Iterator[_Bar]:
    x, line = 0.0, 0
    for index, pool in enumerate(report.plan.pools):
        width = pool.bytes_per_block * scale
        # A thousandth of a pixel for what floating point leaves over.
        if x and x + width > WIDTH + 0.001:
            x, line = 0.0, line + 1
        yield _Bar(index, pool, MARGIN + x, line)
        x += width + GAP


def _defs() -> str:
    return (
        '<defs><pattern id="idle" width="6" height="6" patternUnits="userSpaceOnUse" '
        'patternTransform="rotate(45)"><rect class="idle-ground" width="6" height="6"/>'
        '<line class="idle-line" x1="0" y1="0" x2="0" y2="6"/></pattern></defs>'
    )


def _group_names(top: float, groups: int) -> Iterator[str]:
    for group in range(groups):
        y = top + HEAD + group * ROW + ROW - 4
        yield f'<text class="name" x="0" y="{y:.1f}">group {group}</text>'


def _bar(report: PlanReport, bar: _Bar, scale: float, top: float) -> Iterator[str]:
    width = bar.pool.bytes_per_block * scale
    name = f"pool {bar.index}"
    size = format_bytes(bar.pool.bytes_per_block)
    if width >= NUMBER_WIDTH:
        label = name if width >= NAME_WIDTH else str(bar.index)
        yield f'<text class="name" x="{bar.x:.2f}" y="{top + HEAD - 4:.1f}">{label}</text>'
    yield f'<g class="pool" data-pool="{bar.index}">'
    for group in range(len(report.plan.groups)):
        y = top + HEAD + group * ROW
        yield (
            f'<rect class="idle" x="{bar.x:.3f}" y="{y:.1f}" width="{width:.3f}" '
            f'height="{ROW - 1:.1f}" fill="url(#idle)"><title>{name}, {size} a block; hatched: '
            f"idle while the block belongs to group {group}</title></rect>"
        )
    for member in bar.pool.layers:
        yield _layer(report, bar, member, scale, top)
    yield "</g>"


def _layer(report: PlanReport, bar: _Bar, member: PlacedLayer, scale: float, top: float) -> str:
    layout = report.plan.layout_of[member.layer]
    parts = list(bar_parts(bar.pool, member))
    sizes: dict[str, int] = {}
    for part in parts:
        sizes[part.component] = sizes.get(part.component, 0) + part.length
    components = ", ".join(f"{name} {format_bytes(size)}" for name, size in sizes.items())
    words = (
        f"{member.layer}: {layout.role}, {layout.kind}, "
        f"{report.backends.get(member.layer, 'no backend')}; group {member.group}, "
        f"pool {bar.index}; {components}"
    )
    text, y = escape(words), top + HEAD + member.group * ROW
    names = list(sizes)
    rects = ""
    for part in parts:
        place = (
            f'x="{bar.x + part.start * scale:.3f}" y="{y:.1f}" '
            f'width="{part.length * scale:.3f}" height="{ROW - 1:.1f}"'
        )
        # Later components are paler; the hatching must not show through.
        shade = min(names.index(part.component), 3)
        rects += f'<rect class="under" {place}/>'
        rects += f'<rect class="part shade{shade}" {place} data-bytes="{part.length}"/>'
    tip = top + HEAD + len(report.plan.groups) * ROW + 14
    return (
        f'<g class="layer {layout.role}" tabindex="0" role="img" aria-label="{text}" '
        f'data-layer="{escape(member.layer)}"><title>{text}</title>{rects}'
        f'<text class="tip" x="{MARGIN:.0f}" y="{tip:.1f}">{text}</text></g>'
    )
