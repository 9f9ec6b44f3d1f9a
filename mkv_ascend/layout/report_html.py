# SPDX-License-Identifier: Apache-2.0
"""A plan's report as one HTML file: nothing is fetched, and no script is needed to read it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from mkv_ascend.layout.report import PlanReport
from mkv_ascend.layout.report_svg import memory_map
from mkv_ascend.layout.report_text import (
    closing_lines,
    comparison,
    count,
    format_bytes,
    group_rows,
    pools_of,
)

__all__ = ["html"]

STYLE = """
:root { color-scheme: light dark; --ground: #ffffff; --ink: #1c2128; --faint: #59636e;
  --rule: #d1d9e0; --target: #2f6db3; --draft: #c4661f; --idle: #eef1f4; --hatch: #b7c0ca; }
@media (prefers-color-scheme: dark) { :root { --ground: #14181d; --ink: #e6eaef;
  --faint: #9aa5b1; --rule: #353c45; --target: #6ea8e6; --draft: #e9975a; --idle: #1d2228;
  --hatch: #4a535e; } }
@media print { :root { --ground: #ffffff; --ink: #000000; --faint: #444444; --rule: #aaaaaa;
  --target: #2f6db3; --draft: #c4661f; --idle: #ffffff; --hatch: #999999; }
  * { print-color-adjust: exact; } main { max-width: none; padding: 0; }
  section { break-inside: avoid-page; } }
body { margin: 0; background: var(--ground); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 1180px; margin: 0 auto; padding: 24px; }
h1 { font-size: 24px; margin: 0 0 12px; } h2 { font-size: 18px; margin: 32px 0 8px; }
p { margin: 6px 0; } .faint { color: var(--faint); }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 2px 16px; margin: 0; }
dt { color: var(--faint); } dd { margin: 0; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; vertical-align: top; padding: 4px 12px 4px 0;
  border-bottom: 1px solid var(--rule); }
th { color: var(--faint); font-weight: 600; }
tr.chosen td { font-weight: 600; }
.legend span { margin-right: 18px; } .legend svg { width: 22px; height: 12px; margin-right: 6px; }
svg.map { width: 100%; min-width: 720px; height: auto; display: block; }
svg .name { fill: var(--faint); font: 11px system-ui, sans-serif; }
svg .tip { fill: var(--ink); font: 12px system-ui, sans-serif; visibility: hidden; }
svg .layer:hover .tip { visibility: visible; }
svg .layer:focus { outline: none; }
svg .layer:focus .part { stroke: var(--ink); stroke-width: 2; }
svg.map:not(:hover) .layer:focus .tip, svg .layer:focus:hover .tip { visibility: visible; }
.target .part, .key-target { fill: var(--target); } .draft .part, .key-draft { fill: var(--draft); }
.under { fill: var(--ground); } .part { stroke: var(--ground); stroke-width: 0.6; }
.shade1 { fill-opacity: 0.72; } .shade2 { fill-opacity: 0.5; } .shade3 { fill-opacity: 0.36; }
.idle-ground { fill: var(--idle); } .idle-line { stroke: var(--hatch); stroke-width: 2; }
"""

LEGEND = """<p class="legend"><span><svg viewBox="0 0 22 12" aria-hidden="true">
<rect class="key-target" width="22" height="12"/></svg>target</span>
<span><svg viewBox="0 0 22 12" aria-hidden="true"><rect class="key-draft" width="22" height="12"/>
</svg>draft</span>
<span><svg viewBox="0 0 22 12" aria-hidden="true"><rect width="22" height="12" fill="url(#idle)"/>
</svg>idle: padding while the block belongs to that group</span></p>"""


def html(report: PlanReport) -> str:
    """The whole file; it is well-formed XML too."""
    subjects = dict(report.subjects)
    models = [subjects[role].split(" (")[0] for role in ("target", "draft") if role in subjects]
    title = escape(" + ".join(models) or "KV cache plan")
    sections = [
        _overview(report, title),
        _section("What it costs, and what else could be had", _costs(report)),
        _section("Memory map of one block", _map(report)),
        _section("KV groups", _table(group_rows(report))),
        _section("Pools", _pools(report)),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en" xmlns="http://www.w3.org/1999/xhtml">\n<head>\n'
        '<meta charset="utf-8"/>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>\n'
        f"<title>KV cache plan: {title}</title>\n<style>{STYLE}</style>\n</head>\n"
        "<body>\n<main>\n" + "\n".join(sections) + "\n</main>\n</body>\n</html>\n"
    )


def _overview(report: PlanReport, title: str) -> str:
    request = report.request
    pairs = [
        *report.subjects,
        (
            "measured with",
            f"one request of {count(request.tokens, 'token')}, {request.tokens_per_step} per step",
        ),
    ]
    rows = "".join(f"<dt>{escape(word)}</dt><dd>{escape(text)}</dd>" for word, text in pairs)
    return f"<h1>KV cache plan: {title}</h1>\n<dl>{rows}</dl>"


def _section(heading: str, body: str) -> str:
    return f"<section>\n<h2>{heading}</h2>\n{body}\n</section>"


def _costs(report: PlanReport) -> str:
    return _table(comparison(report), chosen=0) + _paragraphs(closing_lines(report))


def _map(report: PlanReport) -> str:
    size = format_bytes(report.plan.bytes_per_block)
    words = (
        f"One block id has {size} over {count(len(report.plan.pools), 'pool')}, drawn to scale. "
        "Each row is a KV group: what its layers keep while the block is theirs. Point at a layer, "
        "or step through them with the tab key, to read what it is."
    )
    return f'<p class="faint">{words}</p>\n{LEGEND}\n<div class="scroll">{memory_map(report)}</div>'


def _pools(report: PlanReport) -> str:
    header = ("what", "why, and which layers")
    return _table([header, *(pools_of(part) for part in report.pool_parts())])


def _table(rows: Sequence[Sequence[str]], chosen: int | None = None) -> str:
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in rows[0])
    body = []
    for index, row in enumerate(rows[1:]):
        mark = ' class="chosen"' if index == chosen else ""
        cells = "".join(f"<td>{escape(cell.strip())}</td>" for cell in row)
        body.append(f"<tr{mark}>{cells}</tr>")
    return (
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


def _paragraphs(lines: Iterable[str]) -> str:
    return "".join(f'<p class="faint">{escape(line)}</p>' for line in lines)
