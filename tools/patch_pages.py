# SPDX-License-Identifier: Apache-2.0
"""The inventory of docs/patches.md, from the records that stand beside the replacements."""

from __future__ import annotations

import foreign_names
from foreign_names import Placed


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
        ("Can go when", record.until),
    ]
    lines = [f"- **{title}**: {text}" for title, text in rows]
    return f"### {record.name}\n\n" + "\n".join(lines)


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names)
