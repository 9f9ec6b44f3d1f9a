# SPDX-License-Identifier: Apache-2.0
"""A plan's report as one page: the tables of the text, and a bar for each KV group.

It fetches nothing, has no script, and is well-formed XML too.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from mkv_ascend.layout.page_shape import counted_in
from mkv_ascend.layout.report import PlanReport, served_groups
from mkv_ascend.layout.report_text import (
    Row,
    answer,
    closing_lines,
    comparison,
    format_bytes,
    group_rows,
    measured_with,
    pool_lines,
)

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


def html(report: PlanReport) -> str:
    """The whole file."""
    request, shapes = f"one request of {measured_with(report)}", report.plan.shapes
    parts = [
        f"<h1>KV cache plan</h1><p>{escape(answer(report))}</p>",
        _table([("what", "is"), *report.subjects, ("measured with", request)]),
        "<h2>KV groups</h2>",
        _table(group_rows(report)),
        f"<h2>What a {counted_in(shapes)} holds ({format_bytes(report.plan.bytes_per_block)})</h2>",
        *_bars(report),
        "<h2>Pools</h2>",
        _table(
            [("what", "why"), *(pool_lines(pool, report.plan.shapes) for pool in report.plan.pools)]
        ),
        "<h2>What it costs</h2>",
        _table(comparison(report)),
        *(f"<p>{escape(line)}</p>" for line in closing_lines(report)),
    ]
    body = "\n".join(parts)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"/>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>\n'
        f"<title>KV cache plan</title><style>{STYLE}</style></head>\n"
        f"<body><main>\n{body}\n</main></body></html>\n"
    )


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
