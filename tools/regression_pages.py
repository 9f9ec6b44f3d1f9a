# SPDX-License-Identifier: Apache-2.0
"""docs/regressions.md: public reports of faults, and the tests that show them right here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

FILE = Path(__file__).resolve().parent.parent / "tests" / "data" / "regressions.json"

Report = Mapping[str, str]
"""``report``: repository and number; ``title``, ``wrong``: what goes wrong, and by what; ``test``:
shows it right here; ``stock``: shows the fault of the host, where one does."""


def read() -> list[Report]:
    """All reports of the file."""
    found: list[Report] = json.loads(FILE.read_text(encoding="utf-8"))
    return found


def table() -> str:
    """A row for each report."""
    lines = [
        "| report | what goes wrong | shown right by | stock shown wrong by |",
        "| --- | --- | --- | --- |",
    ]
    for one in read():
        cells = (
            link(one["report"]),
            one["title"],
            _test(one["test"]),
            _test(one["stock"]) if "stock" in one else "",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def link(report: str) -> str:
    """To a report of GitHub, from its repository and number."""
    repository, _, number = report.partition("#")
    return f"[{repository.rpartition('/')[2]} {number}](https://github.com/{repository}/issues/{number})"


def _test(name: str) -> str:
    file, _, function = name.removeprefix("tests/").partition("::")
    return f"`{file}` `{function}`"
