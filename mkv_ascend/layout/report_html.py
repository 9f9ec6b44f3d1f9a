# SPDX-License-Identifier: Apache-2.0
"""A plan's report as one HTML file: nothing is fetched, and no script is needed to read it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from mkv_ascend.layout.report import PlanReport
from mkv_ascend.layout.report_map import memory_map
from mkv_ascend.layout.report_text import (
    answer,
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
p { margin: 6px 0; overflow-wrap: anywhere; } .faint { color: var(--faint); }
.answer { font-size: 18px; margin: 0 0 16px; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 2px 16px; margin: 0; }
dt { color: var(--faint); } dd { margin: 0; overflow-wrap: anywhere; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; vertical-align: top; padding: 4px 12px 4px 0;
  border-bottom: 1px solid var(--rule); overflow-wrap: break-word; }
th { color: var(--faint); font-weight: 600; white-space: nowrap; }
tr.chosen td { font-weight: 600; }
.legend span { margin-right: 18px; white-space: nowrap; }
.legend i { display: inline-block; width: 22px; height: 12px; margin-right: 6px; }
figure { margin: 16px 0; } figcaption { font-weight: 600; }
.group { margin: 6px 0; } .group p { margin: 0; font-size: 13px; }
.bar { display: block; height: 16px; }
.bar, .key-idle { background: repeating-linear-gradient(45deg, var(--idle) 0 4px,
  var(--hatch) 4px 6px); }
.part { fill: var(--target); stroke: var(--ground); stroke-width: 1;
  vector-effect: non-scaling-stroke; }
.draft .part { fill: var(--draft); }
.key-target { background: var(--target); } .key-draft { background: var(--draft); }
.target .shade1 { fill: color-mix(in srgb, var(--target) 72%, var(--ground)); }
.target .shade2 { fill: color-mix(in srgb, var(--target) 50%, var(--ground)); }
.target .shade3 { fill: color-mix(in srgb, var(--target) 36%, var(--ground)); }
.draft .shade1 { fill: color-mix(in srgb, var(--draft) 72%, var(--ground)); }
.draft .shade2 { fill: color-mix(in srgb, var(--draft) 50%, var(--ground)); }
.draft .shade3 { fill: color-mix(in srgb, var(--draft) 36%, var(--ground)); }
@media (max-width: 900px) { main { padding: 12px; } dl { display: block; }
  thead { display: none; } tr { display: block; border-bottom: 1px solid var(--rule);
  padding: 6px 0; } td { overflow-wrap: anywhere; display: grid;
  grid-template-columns: 9em 1fr; border: none; padding: 1px 0; } td:empty { display: none; }
  td::before { content: attr(data-head); color: var(--faint); font-weight: 400; } }
"""

LEGEND = """<p class="legend"><span><i class="key-target"></i>target</span>
<span><i class="key-draft"></i>draft</span>
<span><i class="key-idle"></i>idle while the block belongs to that group</span></p>"""


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
    words = escape(answer(report))
    return f'<h1>KV cache plan: {title}</h1>\n<p class="answer">{words}</p>\n<dl>{rows}</dl>'


def _section(heading: str, body: str) -> str:
    return f"<section>\n<h2>{heading}</h2>\n{body}\n</section>"


def _costs(report: PlanReport) -> str:
    return _table(comparison(report), chosen=0) + _paragraphs(closing_lines(report))


def _map(report: PlanReport) -> str:
    size = format_bytes(report.plan.bytes_per_block)
    words = (
        f"One block id has {size} over {count(len(report.plan.pools), 'pool')}, drawn to scale; "
        "pools that are alike are drawn once. Each bar is a KV group: what its layers keep while "
        "the block is theirs."
    )
    return f'<p class="faint">{words}</p>\n{LEGEND}\n{memory_map(report)}'


def _pools(report: PlanReport) -> str:
    header = ("what", "why, and which layers")
    return _table([header, *(pools_of(part) for part in report.pool_parts())])


def _table(rows: Sequence[Sequence[str]], chosen: int | None = None) -> str:
    """``rows``: the header first. On a narrow screen each cell is a line behind its header."""
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in rows[0])
    body = []
    for index, row in enumerate(rows[1:]):
        mark = ' class="chosen"' if index == chosen else ""
        cells = "".join(
            f'<td data-head="{escape(name)}">{escape(cell.strip())}</td>'
            for name, cell in zip(rows[0], row, strict=True)
        )
        body.append(f"<tr{mark}>{cells}</tr>")
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"


def _paragraphs(lines: Iterable[str]) -> str:
    return "".join(f'<p class="faint">{escape(line)}</p>' for line in lines)
