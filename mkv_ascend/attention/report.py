# SPDX-License-Identifier: Apache-2.0
"""The one table at start-up: which backend serves which layers, and who chose it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from mkv_ascend.attention.layer_ranges import fold_layer_names
from mkv_ascend.attention.selection import Choice
from mkv_ascend.layout.kind import Kind, Role


@dataclass(frozen=True)
class ReportRow:
    """Layers of one role that are alike in everything the table shows."""

    role: Role
    layers: tuple[str, ...]
    kind: Kind
    backend: str
    chosen_by: str
    detail: str
    kv_group: int | None = None

    @property
    def folded_layers(self) -> str:
        """The layer names with ranges of numbers folded."""
        return ", ".join(fold_layer_names(self.layers))


@dataclass(frozen=True)
class SelectionReport:
    """All rows, target first, each role in the order of its layers."""

    rows: tuple[ReportRow, ...]

    def of(self, role: Role) -> tuple[ReportRow, ...]:
        """The rows of one role."""
        return tuple(row for row in self.rows if row.role is role)

    def as_dict(self) -> dict[str, Any]:
        """Plain lists, texts and numbers, for JSON."""
        return {
            "rows": [
                {
                    **asdict(row),
                    "role": row.role.value,
                    "kind": row.kind.value,
                    "layers": list(row.layers),
                    "folded_layers": row.folded_layers,
                }
                for row in self.rows
            ]
        }

    def lines(self) -> tuple[str, ...]:
        """The table as aligned lines of text, for the log."""
        with_groups = any(row.kv_group is not None for row in self.rows)
        texts: list[str] = []
        header = ("layers", "kind", "backend", *(("KV group",) if with_groups else ()), "chosen by")
        cells = {role: [_cells(row, with_groups) for row in self.of(role)] for role in Role}
        table = [header, *(line for lines in cells.values() for line in lines)]
        widths = [max(len(line[column]) for line in table) for column in range(len(header))]
        for role, lines in cells.items():
            if not lines:
                continue
            texts.append(f"Attention backends of the {role}:")
            texts += [
                "  " + "  ".join(map(str.ljust, line, widths)).rstrip() for line in (header, *lines)
            ]
        return tuple(texts)

    def __str__(self) -> str:
        return "\n".join(self.lines())


def _cells(row: ReportRow, with_groups: bool) -> tuple[str, ...]:
    group = "-" if row.kv_group is None else str(row.kv_group)
    chosen_by = f"{row.chosen_by} ({row.detail})"
    return (
        row.folded_layers,
        str(row.kind),
        row.backend,
        *((group,) if with_groups else ()),
        chosen_by,
    )


def build_report(
    choices: Iterable[Choice], kv_groups: Mapping[str, int] | None = None
) -> SelectionReport:
    """The table of these choices; ``kv_groups`` maps layer names to KV groups once they are known.

    Rows keep the order in which their first layer comes; layers should come in the order in which
    the model runs them.
    """
    groups = kv_groups or {}
    layers: dict[tuple[Role, Kind, str, str, str, int | None], list[str]] = {}
    for choice in choices:
        request = choice.request
        key = (
            request.role,
            request.kind,
            choice.backend.name,
            str(choice.chosen_by),
            choice.detail,
            groups.get(request.name),
        )
        layers.setdefault(key, []).append(request.name)
    rows = [
        ReportRow(role, tuple(names), kind, backend, chosen_by, detail, group)
        for (role, kind, backend, chosen_by, detail, group), names in layers.items()
    ]
    return SelectionReport(tuple(row for role in Role for row in rows if row.role is role))
