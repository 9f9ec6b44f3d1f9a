# SPDX-License-Identifier: Apache-2.0
"""How ``mkv-ascend bench`` shows its answer: a table with bars, and a page with plots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

TEMPLATE = Path(__file__).with_name("bench_report.html.jinja")
EIGHTHS = " ▏▎▍▌▋▊▉█"
BAR_CELLS = 24
HEADINGS = ("run", "tokens per step", "ms per token", "TTFT ms", "tokens/s", "proposals of steps")
ORDER = ("tpot_ms", "ttft_ms", "tokens_per_second")
EMULATED = "on the emulated NPU: counts are exact, times mean nothing and are left out"


def rows(answer: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Texts of the table, a row for each run; a run that failed says why."""
    found = []
    for one in answer["runs"]:
        if "failed" in one:
            found.append((one["name"], one["failed"].splitlines()[0], *[""] * 4))
            continue
        times = one.get("times", {})
        texts = [f"{times[name]:.2f}" if name in times else "-" for name in ORDER]
        proposals = one["counts"].get("proposals_of_steps")
        said = "-" if proposals is None else str(proposals)
        found.append((one["name"], f"{one.get('tokens_per_step', 1.0):.2f}", *texts, said))
    return found


def bar(share: float) -> str:
    """A bar of ``BAR_CELLS`` characters for a share from 0 to 1."""
    eighths = round(min(max(share, 0.0), 1.0) * BAR_CELLS * 8)
    whole, rest = divmod(eighths, 8)
    return "█" * whole + (EIGHTHS[rest] if rest else "")


def plot_lines(answer: Mapping[str, Any]) -> list[str]:
    """Bars of what was accepted at each position."""
    lines = []
    for one in answer["runs"]:
        shares: Sequence[float] = one.get("accepted_by_position", ())
        if shares:
            lines.append(f"{one['name']}: accepted by position")
        for position, share in enumerate(shares, start=1):
            lines.append(f"  {position:>2} {bar(share):<{BAR_CELLS}} {share:.1%}")
    return lines


def show(answer: Mapping[str, Any], console: Console) -> None:
    """Print the table and the bars."""
    from rich.table import Table

    title = f"{answer['target']}: {answer['requests']} requests, {answer['concurrency']} at once"
    table = Table(title=title)
    for heading in HEADINGS:
        table.add_column(heading, overflow="fold")
    for row in rows(answer):
        # The end of a log may hold what looks like markup.
        table.add_row(*(text.replace("[", r"\[") for text in row))
    console.print(table)
    if answer["emulated"]:
        console.print(EMULATED)
    for line in plot_lines(answer):
        console.print(line, markup=False)


def html(answer: Mapping[str, Any]) -> str:
    """The whole page; nothing is fetched, and no script is needed to read it."""
    import jinja2

    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    measured = [one for one in answer["runs"] if "failed" not in one]
    times = [one for one in measured if "times" in one]
    return template.render(
        answer=answer,
        headings=HEADINGS,
        rows=rows(answer),
        note=EMULATED if answer["emulated"] else "",
        accepted=[one for one in measured if one.get("accepted_by_position")],
        steps=[(one["name"], one.get("tokens_per_step", 1.0)) for one in measured],
        times=[(one["name"], one["times"]["tpot_ms"]) for one in times],
    )
