# SPDX-License-Identifier: Apache-2.0
"""A plan's report as text, for a terminal; and the plan that an engine serves, for its log."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from mkv_ascend.layout.admission import NULL_BLOCKS
from mkv_ascend.layout.bound import BoundPlan
from mkv_ascend.layout.grouping import Cost
from mkv_ascend.layout.layer_ranges import abbreviated_names
from mkv_ascend.layout.page_shape import ONE_BLOCK, PageShape, counted_in
from mkv_ascend.layout.placement import Pool
from mkv_ascend.layout.report import (
    GroupPart,
    PlanReport,
    group_parts,
)
from mkv_ascend.layout.retention import RetentionKind

KIB = 1024
Row = tuple[str, ...]

COMPARISON_HEADER = (
    "grouping",
    "groups",
    "one request",
    "padding",
    "blocks",
    "requests at once",
)


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
    """The whole report."""
    width = max((len(word) for word, _ in report.subjects), default=0)
    lines = [answer(report), ""]
    lines += [f"{word:<{width}}  {value}" for word, value in report.subjects]
    page = f"{format_bytes(report.plan.bytes_per_block)} for each"
    lines += [
        "",
        f"KV groups (blocks and bytes of one request of {measured_with(report)})",
        *aligned(group_rows(report)),
        "",
        f"Pools ({page} {counted_in(report.plan.shapes)})",
        *(f"  {x}" for pool in report.plan.pools for x in pool_lines(pool, report.plan.shapes)),
        "",
        "What it costs",
        *aligned(comparison(report)),
    ]
    lines += ["", *closing_lines(report)]
    return "\n".join(lines) + "\n"


def measured_with(report: PlanReport) -> str:
    """The request that memory is measured with: ``1024 tokens, 4 per step``."""
    request = report.request
    return f"{count(request.tokens, 'token')}, {request.tokens_per_step} per step"


def closing_lines(report: PlanReport) -> list[str]:
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
    capacity = report.plan.capacity()
    heads = [
        (
            group.block_size,
            _blocks(group.blocks, group.shape),
            capacity[index].idle_bytes / report.plan.bytes_per_block,
        )
        for index, group in enumerate(report.grouping.groups)
    ]
    return group_table(report.group_parts(), heads)


def _blocks(blocks: int, shape: PageShape) -> str:
    return str(blocks) if shape == ONE_BLOCK else f"{blocks}, {shape.blocks} a page"


def group_table(parts: Iterable[GroupPart], heads: Sequence[tuple[int, str, float]]) -> list[Row]:
    """Header and rows. ``heads``: of each group tokens, blocks of a request, fraction idle."""
    rows: list[Row] = [
        ("group", "tokens", "blocks", "idle", "layers", "role", "kind", "backend", "page")
    ]
    shown: set[int] = set()
    for part in parts:
        tokens, blocks, idle = heads[part.group]
        head = (str(part.group), str(tokens), blocks, f"{idle:.1%}")
        page = format_bytes(part.page_bytes)
        if part.padding_bytes:
            page += f" ({format_bytes(part.padding_bytes)} padding)"
        rows.append(
            (
                *(("", "", "", "") if part.group in shown else head),
                f"{part.abbreviated} ({len(part.layers)})",
                part.role,
                part.kind,
                part.backend,
                page,
            )
        )
        shown.add(part.group)
    return rows


def pool_lines(pool: Pool, shapes: Iterable[PageShape]) -> tuple[str, str]:
    """Two lines on a pool: what it is, and why, with which layers."""
    what = f"{pool.storage}: {format_bytes(pool.bytes_per_block)} a {counted_in(shapes)}"
    what += f" in {count(len(pool.buffers), 'buffer')}"
    layers = ", ".join(abbreviated_names(member.layer for member in pool.layers))
    return what, f"  because {pool.reason}; {layers}"


def comparison(report: PlanReport) -> list[Row]:
    """Header, this plan, vLLM's own grouping, and no padding at all."""
    cost = report.grouping.cost
    rows: list[Row] = [
        COMPARISON_HEADER,
        (
            "this plan",
            str(cost.groups),
            _mib(report.request_bytes),
            f"{cost.padding_fraction:.1%}",
            _number(report.num_blocks),
            _requests(report.max_concurrency),
        ),
    ]
    if report.other_cost is not None:
        rows.append(_row_of_vllm(report, report.other_cost))
    elif report.other is not None:
        rows.append(("vLLM's own", "raises", "-", "-", "-", "-"))
    rows.append(("no padding at all", "-", _mib(cost.needed_bytes), "0.0%", "-", "-"))
    return rows


def _row_of_vllm(report: PlanReport, cost: Cost) -> Row:
    return (
        "vLLM's own",
        str(cost.groups),
        _mib(cost.held_bytes),
        f"{cost.padding_fraction:.1%}",
        _number(cost.pages_in(report.memory_bytes)),
        _requests(cost.requests_in(report.memory_bytes)),
    )


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
    groups, block_bytes = bound.groups(), bound.bytes_per_block
    if not groups:
        return "KV cache plan: no layer keeps keys, values or states"
    used = [
        shape.blocks * sum(layout.used_bytes for layout in layouts)
        for layouts, shape in zip(groups, bound.shapes, strict=True)
    ]
    held_pages = [
        shape.pages(blocks) for blocks, shape in zip(request_blocks, bound.shapes, strict=True)
    ]
    heads = [
        (layouts[0].tokens_per_block, _blocks(pages * shape.blocks, shape), 1 - held / block_bytes)
        for layouts, pages, held, shape in zip(groups, held_pages, used, bound.shapes, strict=True)
    ]
    pages = sum(held_pages)
    held = sum(number * size for number, size in zip(held_pages, used, strict=True))
    padding = 1 - held / (pages * block_bytes) if pages else 0.0
    share = sum(
        shape.share(blocks) for blocks, shape in zip(request_blocks, bound.shapes, strict=True)
    )
    at_once = (bound.num_blocks - NULL_BLOCKS) / (share or 1)
    word = counted_in(bound.shapes)
    return "\n".join(
        (
            f"KV cache plan: {count(len(groups), 'group')}, {count(bound.num_blocks, word)} of "
            f"{format_bytes(block_bytes)}, {format_bytes(bound.total_bytes)} in all on each rank",
            *aligned(group_table(group_parts(groups, backends), heads)),
            *(f"  {pool_lines(pool, bound.shapes)[0]}" for pool in bound.pools),
            f"One request of {count(request_tokens, 'token')} takes {count(pages, word)} "
            f"({format_bytes(pages * block_bytes)}, {padding:.1%} padding): {at_once:.2f} at once",
        )
    )


def aligned(rows: Sequence[Row]) -> list[str]:
    """Rows as lines with columns of equal width, two spaces in."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  " + "  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def _mib(number: int) -> str:
    """All in one unit, so that small differences are seen."""
    return f"{number / KIB**2:.1f} MiB"


def _number(number: int | None) -> str:
    return "-" if number is None else str(number)


def _requests(number: float | None) -> str:
    return "-" if number is None else f"{number:.2f}"
