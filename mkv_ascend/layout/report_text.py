# SPDX-License-Identifier: Apache-2.0
"""A plan's report as text for a terminal and as one page; and an engine's plan, for its log.

The page has the tables of the text, and a bar for each KV group. It fetches nothing, has no script,
and is well-formed XML too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

from mkv_ascend.layout.component import ONE_BLOCK, PageShape, counted_in
from mkv_ascend.layout.grouping import NULL_BLOCKS, Cost
from mkv_ascend.layout.kind import abbreviated_names
from mkv_ascend.layout.plan import BoundPlan
from mkv_ascend.layout.pooling import Pool
from mkv_ascend.layout.report import GroupPart, PlanReport, group_parts, served_groups
from mkv_ascend.layout.requirements import RetentionKind

KIB = 1024
Row = tuple[str, ...]

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


def format_bytes(number: int) -> str:
    """``1.5 MiB``: the largest unit that leaves 1 or more before the point."""
    for unit, size in (("GiB", KIB**3), ("MiB", KIB**2), ("KiB", KIB)):
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return f"{number} B"


def count(number: int, word: str) -> str:
    """``1 layer``, ``2 layers``."""
    return f"{number} {word}{'' if number == 1 else 's'}"


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
        *_aligned(group_rows(report)),
        *("", f"Pools ({page} {counted_in(shapes)})"),
        *(f"  {line}" for pool in report.plan.pools for line in pool_lines(pool, shapes)),
        *("", "What it costs"),
        *_aligned(comparison(report)),
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
        (group.block_size, _blocks(group.blocks, group.shape), capacity.idle_bytes)
        for group, capacity in pairs
    ]
    return _group_table(report.group_parts(), heads, report.plan.bytes_per_block)


def _blocks(blocks: int, shape: PageShape) -> str:
    return str(blocks) if shape == ONE_BLOCK else f"{blocks}, {shape.blocks} a page"


def _group_table(
    parts: Iterable[GroupPart], heads: Sequence[tuple[int, str, int]], page_bytes: int
) -> list[Row]:
    """Header and rows. ``heads``: of each group tokens, blocks of a request, idle bytes."""
    rows: list[Row] = [
        ("group", "tokens", "blocks", "idle", "layers", "role", "kind", "backend", "page")
    ]
    shown: set[int] = set()
    for part in parts:
        tokens, blocks, idle = heads[part.group]
        head = (str(part.group), str(tokens), blocks, f"{idle / page_bytes:.1%}")
        page = format_bytes(part.page_bytes)
        if part.padding_bytes:
            page += f" ({format_bytes(part.padding_bytes)} padding)"
        layers = f"{part.abbreviated} ({len(part.layers)})"
        head = head if part.group not in shown else ("",) * 4
        rows.append((*head, layers, part.role, part.kind, part.backend, page))
        shown.add(part.group)
    return rows


def pool_lines(pool: Pool, shapes: Iterable[PageShape]) -> tuple[str, str]:
    """Two lines on a pool: what it is, and why, with which layers."""
    what = f"{pool.storage}: {format_bytes(pool.bytes_per_block)} a {counted_in(shapes)}"
    what += f" in {count(len(pool.buffers), 'buffer')}"
    layers = ", ".join(abbreviated_names(member.layer for member in pool.layers))
    return what, f"  because {pool.reason}; {layers}"


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


def served_text(
    bound: BoundPlan,
    request_tokens: int,
    request_blocks: Sequence[int],
    backends: Mapping[str, str],
) -> str:
    """Groups, pools and the cost of one request of a plan that an engine serves from.

    Args:
        request_blocks: for each KV group the blocks that one request of ``request_tokens`` tokens
            holds at most, as the scheduler admits it.
        backends: backend by layer.
    """
    if not bound.groups:
        return "KV cache plan: no layer keeps keys, values or states"
    size, word = bound.bytes_per_block, counted_in(bound.shapes)
    capacities = bound.capacity()
    pairs = list(zip(request_blocks, bound.shapes, strict=True))
    held = [shape.pages(blocks) for blocks, shape in pairs]
    heads = [
        (group.tokens_per_block, _blocks(pages * group.shape.blocks, group.shape), part.idle_bytes)
        for group, pages, part in zip(bound.groups, held, capacities, strict=True)
    ]
    pages = sum(held)
    used = sum(number * part.used_bytes for number, part in zip(held, capacities, strict=True))
    padding = 1 - used / (pages * size) if pages else 0.0
    share = sum(shape.share(blocks) for blocks, shape in pairs)
    at_once = (bound.num_blocks - NULL_BLOCKS) / (share or 1)
    parts = group_parts(bound.layouts_by_group(), backends)
    return "\n".join(
        (
            f"KV cache plan: {count(len(bound.groups), 'group')}, "
            f"{count(bound.num_blocks, word)} of {format_bytes(size)}, "
            f"{format_bytes(bound.total_bytes)} in all on each rank",
            *_aligned(_group_table(parts, heads, size)),
            *(f"  {pool_lines(pool, bound.shapes)[0]}" for pool in bound.pools),
            f"One request of {count(request_tokens, 'token')} takes {count(pages, word)} "
            f"({format_bytes(pages * size)}, {padding:.1%} padding): {at_once:.2f} at once",
        )
    )


def _aligned(rows: Sequence[Row]) -> list[str]:
    """Rows as lines with columns of equal width, two spaces in."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  " + "  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


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
