# SPDX-License-Identifier: Apache-2.0
"""A plan beside vLLM's own grouping: as text for a terminal, as one page, and as JSON.

The page has the tables of the text, and a bar for each KV group. It fetches nothing, has no script,
and is well-formed XML too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from mkv_ascend.layout.component import counted_in
from mkv_ascend.layout.grouping import NULL_BLOCKS, Cost, Grouping
from mkv_ascend.layout.kind import Role
from mkv_ascend.layout.plan import CachePlan
from mkv_ascend.layout.planning import ServingPlan
from mkv_ascend.layout.pooling import PlacedLayer, page_bytes
from mkv_ascend.layout.report import (
    KIB,
    GroupPart,
    OtherGrouping,
    Row,
    aligned,
    blocks_in_pages,
    count,
    format_bytes,
    group_parts,
    group_table,
    layer_values,
    pool_lines,
    served_groups,
)
from mkv_ascend.layout.requirements import Request, RetentionKind

FORMAT_VERSION = 1

STYLE = """
:root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif; }
body { max-width: 1180px; margin: 0 auto; padding: 16px; overflow-wrap: break-word; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: 4px 12px 4px 0;
  border-bottom: 1px solid #8886; }
.bar { display: flex; height: 16px; print-color-adjust: exact; }
.target { background: #2f6db3; } .draft { background: #c4661f; }
.idle { background: repeating-linear-gradient(45deg, #8883 0 4px, #8888 4px 6px); }
@media (max-width: 900px) { thead { display: none; } tr, td { display: block; }
  td { border: none; overflow-wrap: anywhere; } td:empty { display: none; }
  td::before { content: attr(title) ": "; } }
"""


@dataclass(frozen=True)
class PlanReport:
    """A plan with all that a reader may ask of it.

    ``subjects``: what was planned, as pairs of word and text. ``memory_bytes``: memory of the
    caches on one device, None when it is not known. ``other``: vLLM's own grouping, None with the
    reason in ``other_absent``.
    """

    subjects: tuple[tuple[str, str], ...]
    planned: ServingPlan
    memory_bytes: int | None = None
    other: OtherGrouping | None = None
    other_absent: str = "it was not asked for"
    notes: tuple[str, ...] = ()

    @property
    def request(self) -> Request:
        return self.planned.inputs.request

    @property
    def grouping(self) -> Grouping:
        return self.planned.grouping

    @property
    def plan(self) -> CachePlan:
        return self.planned.plan

    @property
    def request_blocks(self) -> int:
        """Pages of all groups that one request holds: blocks, where a page is a block."""
        return self.grouping.cost.pages

    @property
    def request_bytes(self) -> int:
        return self.grouping.cost.held_bytes

    @property
    def num_blocks(self) -> int | None:
        """Blocks that fit into the memory; None when that is not known."""
        return None if self.memory_bytes is None else self.plan.num_blocks_in(self.memory_bytes)

    @property
    def max_concurrency(self) -> float | None:
        """Requests of full length that fit at once, vLLM's null block taken off."""
        if self.num_blocks is None or not self.request_blocks:
            return None
        pages = sum(group.page_share(self.request) for group in self.grouping.groups)
        return max(self.num_blocks - NULL_BLOCKS, 0) / pages

    @property
    def refusal(self) -> str | None:
        """Why no engine starts with this memory; None where one may, or none is known."""
        return None if self.num_blocks is None else self.planned.refusal(self.num_blocks)

    @property
    def other_cost(self) -> Cost | None:
        """What vLLM's own grouping costs; None where there is none."""
        if self.other is None or self.other.error:
            return None
        other, needed = self.other, self.grouping.cost.needed_bytes
        return Cost(other.groups, other.request_blocks, other.block_bytes, needed)

    def without_draft(self) -> Cost | None:
        """What the target's layers cost in these groups by themselves; None without a draft."""
        pairs = zip(self.plan.layouts_by_group(), self.grouping.groups, strict=True)
        own = [([x for x in layouts if x.role is Role.TARGET], group) for layouts, group in pairs]
        if sum(len(layouts) for layouts, _ in own) == len(self.plan.layers):
            return None
        kept = [(layouts, group) for layouts, group in own if layouts]
        pages = sum(group.pages(self.request) for _, group in kept)
        size = page_bytes([layouts for layouts, _ in kept], [group.shape for _, group in kept])
        return Cost(len(kept), pages, size)

    def group_parts(self) -> Iterator[GroupPart]:
        return group_parts(self.plan.layouts_by_group(), self.planned.backends)

    def to_dict(self) -> dict[str, Any]:
        """The report as plain values for JSON; sizes are in bytes."""
        return {
            "format": FORMAT_VERSION,
            "subjects": dict(self.subjects),
            "request": {
                "tokens": self.request.tokens,
                "tokens_per_step": self.request.tokens_per_step,
                "blocks": self.request_blocks,
                "bytes": self.request_bytes,
                "needed_bytes": self.grouping.cost.needed_bytes,
                "admission_blocks": sum(self.planned.admission_pages),
            },
            "padding_fraction": self.grouping.cost.padding_fraction,
            "prefix_hit_tokens": self.grouping.prefix_hit_tokens,
            "bytes_per_block": self.plan.bytes_per_block,
            "memory_bytes": self.memory_bytes,
            "num_blocks": self.num_blocks,
            "max_concurrency": self.max_concurrency,
            "refusal": self.refusal,
            "groups": list(self._groups()),
            "pools": [
                {
                    "storage": str(pool.storage),
                    "reason": pool.reason,
                    "buffers": list(pool.buffers),
                    "layers": [_placed(member) for member in pool.layers],
                }
                for pool in self.plan.pools
            ],
            "vllm": self._other(),
            "notes": list(self.notes),
        }

    def _groups(self) -> Iterator[dict[str, Any]]:
        chosen, capacities = self.grouping.groups, self.plan.capacity()
        for index, (planned, capacity) in enumerate(zip(self.plan.groups, capacities, strict=True)):
            layouts = (self.plan.layout_of[name] for name in planned.layers)
            yield {
                "tokens_per_block": planned.tokens_per_block,
                "kernel_block": planned.kernel_block,
                "blocks": chosen[index].blocks,
                "blocks_per_page": planned.shape.blocks,
                "admission_blocks": self.planned.admission_pages[index],
                "has_draft": chosen[index].has_draft,
                "used_bytes": capacity.used_bytes,
                "idle_bytes": capacity.idle_bytes,
                "layers": [
                    {"name": x.layer, **layer_values(x, self.planned.backends)} for x in layouts
                ],
            }

    def _other(self) -> dict[str, Any]:
        cost = self.other_cost
        if self.other is None or cost is None:
            return {"error": self.other.error} if self.other else {"absent": self.other_absent}
        return {
            "groups": cost.groups,
            "request_bytes": cost.held_bytes,
            "padding_fraction": cost.padding_fraction,
            "num_blocks": cost.pages_in(self.memory_bytes),
            "max_concurrency": cost.requests_in(self.memory_bytes),
            "request_blocks": cost.pages,
            "bytes_per_block": cost.page_bytes,
        }


def _placed(member: PlacedLayer) -> dict[str, Any]:
    return {
        "name": member.layer,
        "group": member.group,
        "components": {
            part.component: {"buffer": part.buffer, "bytes": part.rows * part.row_bytes}
            for part in member.placements
        },
    }


def answer(report: PlanReport) -> str:
    """A sentence or two: whether it fits, how many requests, and what the draft costs."""
    tokens = count(report.request.tokens, "token")
    takes = format_bytes(report.request_bytes)
    memory, at_once = report.memory_bytes, report.max_concurrency
    if memory is None or at_once is None:
        words = f"One request of {tokens} takes {takes}; give --memory to see how many fit."
    elif report.refusal:
        words = f"It does not fit: {format_bytes(memory)} hold no request of {tokens}."
    else:
        words = f"It fits: {format_bytes(memory)} hold {at_once:.1f} requests of {tokens} at once"
        words += f", {takes} each."
    without = report.without_draft()
    if without is None:
        return words
    cost = max(0, report.request_bytes - without.held_bytes)
    share = cost / max(1, report.request_bytes)
    words += f" The draft costs {format_bytes(cost)} of a request, {share:.0%}"
    alone = without.requests_in(memory)
    if at_once is not None and alone is not None and alone >= 1:
        words += f"; without it {alone:.1f} would fit"
    return f"{words}."


def text(report: PlanReport) -> str:
    width = max((len(word) for word, _ in report.subjects), default=0)
    shapes = report.plan.shapes
    page = f"{format_bytes(report.plan.bytes_per_block)} for each"
    lines = [
        *(answer(report), ""),
        *(f"{word:<{width}}  {value}" for word, value in report.subjects),
        *("", f"KV groups (blocks and bytes of one request of {_measured_with(report)})"),
        *aligned(group_rows(report)),
        *("", f"Pools ({page} {counted_in(shapes)})"),
        *(f"  {line}" for pool in report.plan.pools for line in pool_lines(pool, shapes)),
        *("", "What it costs"),
        *aligned(comparison(report)),
        *("", *_closing_lines(report)),
    ]
    return "\n".join(lines) + "\n"


def html(report: PlanReport) -> str:
    """The same as a page."""
    request, shapes = f"one request of {_measured_with(report)}", report.plan.shapes
    pools = [pool_lines(pool, shapes) for pool in report.plan.pools]
    size = format_bytes(report.plan.bytes_per_block)
    parts = [
        f"<h1>KV cache plan</h1><p>{escape(answer(report))}</p>",
        _table([("what", "is"), *report.subjects, ("measured with", request)]),
        "<h2>KV groups</h2>",
        _table(group_rows(report)),
        f"<h2>What a {counted_in(shapes)} holds ({size})</h2>",
        *_bars(report),
        "<h2>Pools</h2>",
        _table([("what", "why"), *pools]),
        "<h2>What it costs</h2>",
        _table(comparison(report)),
        *(f"<p>{escape(line)}</p>" for line in _closing_lines(report)),
    ]
    body = "\n".join(parts)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"/>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>\n'
        f"<title>KV cache plan</title><style>{STYLE}</style></head>\n"
        f"<body><main>\n{body}\n</main></body></html>\n"
    )


def _measured_with(report: PlanReport) -> str:
    """The request that memory is measured with: ``1024 tokens, 4 per step``."""
    request = report.request
    return f"{count(request.tokens, 'token')}, {request.tokens_per_step} per step"


def _closing_lines(report: PlanReport) -> list[str]:
    """What the tables cannot say: errors, limits, notes."""
    lines = []
    if report.refusal:
        lines.append(f"an engine with this memory is refused at start-up: {report.refusal}")
    if report.other is not None and report.other.error:
        lines.append(f"vLLM's own grouping raises {report.other.error}")
    if report.other is None:
        lines.append(f"vLLM's own grouping is not shown: {report.other_absent}")
    if any(group.retention.kind is RetentionKind.STATE for group in report.grouping.groups):
        lines.append("prefix hits: only where vLLM caches states by prefix (mamba_cache_mode)")
    else:
        hits = count(report.grouping.prefix_hit_tokens, "token")
        lines.append(f"prefix hits come in multiples of {hits}")
    return [*lines, *report.notes]


def group_rows(report: PlanReport) -> list[Row]:
    """Header and a row for each group's layers that are alike."""
    pairs = zip(report.grouping.groups, report.plan.capacity(), strict=True)
    heads = [
        (group.block_size, blocks_in_pages(group.blocks, group.shape), capacity.idle_bytes)
        for group, capacity in pairs
    ]
    return group_table(report.group_parts(), heads, report.plan.bytes_per_block)


def comparison(report: PlanReport) -> list[Row]:
    """Header, this plan, vLLM's own grouping, and no padding at all.

    Bytes are all in one unit, so that small differences are seen.
    """
    own, other, memory = report.grouping.cost, report.other_cost, report.memory_bytes

    def row(name: str, cost: Cost, blocks: int | None, at_once: float | None) -> Row:
        fits = "-" if blocks is None else str(blocks), "-" if at_once is None else f"{at_once:.2f}"
        held = f"{cost.held_bytes / KIB**2:.1f} MiB", f"{cost.padding_fraction:.1%}"
        return (name, str(cost.groups), *held, *fits)

    rows = [
        ("grouping", "groups", "one request", "padding", "blocks", "requests at once"),
        row("this plan", own, report.num_blocks, report.max_concurrency),
    ]
    if other is not None:
        rows.append(row("vLLM's own", other, other.pages_in(memory), other.requests_in(memory)))
    elif report.other is not None:
        rows.append(("vLLM's own", "raises", "-", "-", "-", "-"))
    needed = f"{own.needed_bytes / KIB**2:.1f} MiB"
    return [*rows, ("no padding at all", "-", needed, "0.0%", "-", "-")]


def _table(rows: Sequence[Row]) -> str:
    """On a narrow screen each cell is a line behind the name of its column."""
    head = "".join(f"<th>{escape(cell)}</th>" for cell in rows[0])
    lines = []
    for row in rows[1:]:
        cells = zip(rows[0], row, strict=True)
        words = (f'<td title="{escape(name)}">{escape(cell.strip())}</td>' for name, cell in cells)
        lines.append(f"<tr>{''.join(words)}</tr>")
    body = "\n".join(lines)
    return f"<table><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table>"


def _bars(report: PlanReport) -> list[str]:
    """For each group what its layers keep while a block is theirs, and what lies idle."""
    bars = []
    for group in served_groups(report.plan.bind(1)):
        sizes = {**group["used_bytes"], "idle": group["idle_bytes"]}
        words = ", ".join(f"{name} {format_bytes(size)}" for name, size in sizes.items())
        drawn = (f'<i class="{name}" style="flex: {size}"></i>' for name, size in sizes.items())
        bars.append(f"<p>group {group['kv_group']}: {words}</p>")
        bars.append(f'<div class="bar">{"".join(drawn)}</div>')
    return bars
