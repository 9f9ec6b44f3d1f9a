# SPDX-License-Identifier: Apache-2.0
"""The table of docs/tested.md: what was run for each release, and what came of it.

Each figure stands in a JSON file beside the program that made it; runs of one program on one host
are added up here.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import matrix_pages
import regression_pages

ROOT = Path(__file__).resolve().parent.parent
RELIABILITY = ROOT / "reliability" / "results.json"
"""Release -> machine, days, and a row for each run (``runs``: for as many runs)."""
UPSTREAM = ROOT / "tools" / "upstream_results.json"
"""Release -> tests of vllm-ascend, by host and folder."""

HEAD = ("what ran", "host, model runner", "how much", "what came of it", "problems")
AMOUNTS = {
    "requests": "requests",
    "tokens": "tokens judged",
    "faults": "faults",
    "calls": "calls",
    "drawn": "drawn",
    "comparisons": "comparisons",
}
OUTCOMES = {
    "aborted": "aborted",
    "preemptions": "preemptions",
    "refused": "refused before the start",
    "right": "with every token right",
}
UPSTREAM_OUTCOMES = {
    "skipped": "skipped by themselves",
    "cannot_run": "cannot run here",
    "gap": "gaps of the emulated NPU",
    "fault_of_test": "faults of the tests",
    "not_judged": "not judged again",
}
Row = Mapping[str, Any]


def tables() -> str:
    """A table for each release, the newest first; the matrix and the reports are this release's."""
    releases: dict[str, Any] = json.loads(RELIABILITY.read_text(encoding="utf-8"))
    upstream: dict[str, list[Row]] = json.loads(UPSTREAM.read_text(encoding="utf-8"))
    parts = []
    for place, (release, found) in enumerate(releases.items()):
        lines = [
            *(_this_release() if place == 0 else ()),
            *_by_program(found["rows"]),
            *_upstream(upstream.get(release, ())),
        ]
        head = [matrix_pages.row(HEAD), matrix_pages.row(["---"] * len(HEAD))]
        parts.append("\n".join([f"### {release}", "", *head, *lines]))
    return "\n\n".join(parts)


def _this_release() -> Iterator[str]:
    cells = matrix_pages.read()["cells"]
    on_first = [cell for cell in cells if cell["ours"] is not None]
    by_host: dict[str, list[Row]] = {"0.23.0": on_first}
    for cell in cells:
        for host, there in (cell.get("hosts") or {}).items():
            by_host.setdefault(host, []).append(there)
    for host, found in by_host.items():
        sides = {"ours": "eagerly", "graph": "in graphs", "hits": "with hits"}
        told = [f"{title}: {_counted(found, side)}" for side, title in sides.items()]
        failed = sum(cell.get(side) == "fails" for cell in found for side in sides)
        cells_of = (f"{len(found)} pairs of families", "; ".join(told), str(failed))
        yield matrix_pages.row(("[matrix](matrix.md)", host, *cells_of))
    reports = regression_pages.read()
    shown = sum("stock" in report for report in reports)
    yield matrix_pages.row(
        (
            "[public reports](regressions.md)",
            "both",
            f"{len(reports)} reports",
            f"each shown right by a test; of {shown} a test shows the host's fault",
            "0",
        )
    )


def _counted(found: Iterable[Row], side: str) -> str:
    outcomes = Counter(cell.get(side) or matrix_pages.NOT_RUN for cell in found)
    return ", ".join(f"{number} {outcome}" for outcome, number in outcomes.most_common())


def _by_program(rows: Iterable[Row]) -> Iterator[str]:
    runs: dict[tuple[str, str], list[Row]] = {}
    for one in rows:
        runs.setdefault((one["program"], one["host"]), []).append(one)
    for (program, host), of in runs.items():
        number = sum(one.get("runs", 1) for one in of)
        amounts = [f"{number} run{'s' * (number > 1)}", *_sums(of, AMOUNTS)]
        outcomes = _sums(of, OUTCOMES)
        problems = sum(one["problems"] for one in of)
        cells = (f"`{program}`", host, ", ".join(amounts), "; ".join(outcomes), str(problems))
        yield matrix_pages.row(cells)


def _sums(rows: Iterable[Row], fields: Mapping[str, str]) -> list[str]:
    """What the rows have of each field, added up; a field that none has is left out."""
    found: Counter[str] = Counter()
    for one in rows:
        found.update({field: one[field] for field in fields if one.get(field)})
    return [f"{found[field]:,} {title}" for field, title in fields.items() if found[field]]


def _upstream(rows: Iterable[Row]) -> Iterator[str]:
    hosts: dict[str, list[Row]] = {}
    for one in rows:
        hosts.setdefault(one["host"], []).append(one)
    for host, of in hosts.items():
        passed = sum(one["passed"] for one in of)
        outcomes = ", ".join(_sums(of, UPSTREAM_OUTCOMES))
        failed = str(sum(one["failed"] for one in of))
        amount = f"{len(of)} folders, {passed:,} tests passed"
        yield matrix_pages.row(("vllm-ascend's tests", host, amount, outcomes, failed))
