# SPDX-License-Identifier: Apache-2.0
"""The one table at start-up: which backend serves which layers, and who chose it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mkv_ascend.attention.selection import Choice
from mkv_ascend.layout.kind import Role, abbreviated_names


@dataclass(frozen=True)
class LayerRow:
    """One layer, in plain values: ``dataclasses.asdict`` of it goes into JSON or another process.

    Attributes:
        name: the layer's full name.
        role: value of ``Role``.
        kind: value of ``Kind``.
        backend: the catalog name of its backend.
        chosen_by: value of ``ChosenBy``.
        detail: the option that decided, as a user writes it, or the reason of a default.
        kv_group: id of its KV group; None while there are none, or where it keeps nothing.
    """

    name: str
    role: str
    kind: str
    backend: str
    chosen_by: str
    detail: str
    kv_group: int | None = None


def layer_rows(
    choices: Iterable[Choice], kv_groups: Mapping[str, int] | None = None
) -> tuple[LayerRow, ...]:
    """A row for each choice; ``kv_groups`` maps layer names to KV groups once they are known."""
    groups = kv_groups or {}
    return tuple(
        LayerRow(
            name=choice.request.name,
            role=choice.request.role.value,
            kind=choice.request.kind.value,
            backend=choice.backend.name,
            chosen_by=choice.chosen_by.value,
            detail=choice.detail,
            kv_group=groups.get(choice.request.name),
        )
        for choice in choices
    )


def render(rows: Iterable[LayerRow]) -> str:
    """The table as aligned lines: target and draft apart, layers that are alike in one line.

    Lines keep the order in which their first layer comes. The column of KV groups is there when
    any layer has one.
    """
    rows = tuple(rows)
    with_groups = any(row.kv_group is not None for row in rows)
    header = ("layers", "kind", "backend", *(("KV group",) if with_groups else ()), "chosen by")
    tables = {role: _table([row for row in rows if row.role == role], with_groups) for role in Role}
    lines = [header, *(line for table in tables.values() for line in table)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    texts: list[str] = []
    for role, table in tables.items():
        if table:
            texts.append(f"Attention backends of the {role}:")
            texts += ["  " + _aligned(line, widths) for line in (header, *table)]
    return "\n".join(texts)


def _aligned(cells: tuple[str, ...], widths: list[int]) -> str:
    return "  ".join(map(str.ljust, cells, widths)).rstrip()


def _table(rows: Iterable[LayerRow], with_groups: bool) -> list[tuple[str, ...]]:
    """The lines of one role: abbreviated layer names, then the cells that those layers share."""
    names: dict[tuple[str, ...], list[str]] = {}
    for row in rows:
        group = "-" if row.kv_group is None else str(row.kv_group)
        cells = (
            row.kind,
            row.backend,
            *((group,) if with_groups else ()),
            f"{row.chosen_by} ({row.detail})",
        )
        names.setdefault(cells, []).append(row.name)
    return [(short, *cells) for cells, alike in names.items() for short in abbreviated_names(alike)]
