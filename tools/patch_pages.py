# SPDX-License-Identifier: Apache-2.0
"""The inventory of docs/patches.md, from the records that stand beside the replacements."""

from __future__ import annotations

import json
from collections.abc import Mapping

import foreign_names
from foreign_names import Placed

SHOWN = foreign_names.ROOT / "docs" / "without_patch.json"
"""Version of vllm-ascend -> record -> target -> the test that was seen to fail without it.

``without_patch.py --record`` writes it.
"""


def markdown() -> str:
    """One section for each record, by the folder of the adapter that it stands in."""
    parts: list[str] = []
    folder = None
    for placed in foreign_names.records(foreign_names.all_sources()):
        here = placed.file.parent.relative_to(foreign_names.ADAPTERS).as_posix()
        if here != folder:
            folder = here
            parts.append(f"## `adapters/{'' if here == '.' else here}`".replace("/`", "`"))
        parts.append(_section(placed))
    return "\n\n".join(parts)


def _section(placed: Placed) -> str:
    record = placed.record
    rows = [
        ("Replaces", _listed(record.targets)),
        *([("Counts on", _listed(record.reads))] if record.reads else []),
        *([("Sets", _listed(record.writes))] if record.writes else []),
        ("Why", record.why),
        ("Where", f"`{placed.file.relative_to(foreign_names.ROOT).as_posix()}`"),
        ("Test" if len(record.tests) == 1 else "Tests", _listed(record.tests)),
        *([("Fails in the host's code", f"`{record.stock}`")] if record.stock else []),
        *(
            (f"Seen to fail without it on {version}", _noticed(of_records[record.name]))
            for version, of_records in shown().items()
            if record.name in of_records
        ),
        ("Can go when", record.until),
    ]
    lines = [f"- **{title}**: {text}" for title, text in rows]
    return f"### {record.name}\n\n" + "\n".join(lines)


def shown() -> dict[str, dict[str, dict[str, str]]]:
    """What ``SHOWN`` holds."""
    found: dict[str, dict[str, dict[str, str]]] = json.loads(SHOWN.read_text(encoding="utf-8"))
    return found


def _noticed(tests: Mapping[str, str]) -> str:
    """Each test with the targets without which it fails; one test of all stands alone."""
    targets: dict[str, list[str]] = {}
    for target, test in tests.items():
        targets.setdefault(test, []).append(target.rpartition(":")[2])
    if len(targets) == 1:
        return _listed(tuple(targets))
    return "; ".join(f"{_listed((test,))} ({', '.join(of)})" for test, of in targets.items())


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names)
