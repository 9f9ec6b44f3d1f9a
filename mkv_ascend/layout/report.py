# SPDX-License-Identifier: Apache-2.0
"""A plan as something to look at: groups and what a page holds of each, as tables and values.

An engine logs its own plan with it, and ``mkv-ascend check`` shows one (``commands``). Nothing is
decided here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mkv_ascend.layout.component import ONE_BLOCK, LayerLayout, PageShape, counted_in
from mkv_ascend.layout.grouping import NULL_BLOCKS
from mkv_ascend.layout.kind import abbreviated_names
from mkv_ascend.layout.plan import BoundPlan
from mkv_ascend.layout.pooling import Pool

KIB = 1024
Row = tuple[str, ...]


def format_bytes(number: int) -> str:
    """``1.5 MiB``: the largest unit that leaves 1 or more before the point."""
    for unit, size in (("GiB", KIB**3), ("MiB", KIB**2), ("KiB", KIB)):
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return f"{number} B"


def count(number: int, word: str) -> str:
    """``1 layer``, ``2 layers``."""
    return f"{number} {word}{'' if number == 1 else 's'}"


@dataclass(frozen=True)
class OtherGrouping:
    """What vLLM's own grouping gives, or the error that it raises instead.

    ``request_blocks``: blocks of ``block_bytes`` bytes that one request holds.
    """

    groups: int = 0
    request_blocks: int = 0
    block_bytes: int = 0
    error: str = ""


@dataclass(frozen=True)
class GroupPart:
    """Layers of one KV group that are alike. Bytes are those of one layer's page."""

    group: int
    layers: tuple[str, ...]
    role: str
    kind: str
    backend: str
    page_bytes: int
    padding_bytes: int

    @property
    def abbreviated(self) -> str:
        return ", ".join(abbreviated_names(self.layers))


def group_parts(
    groups: Sequence[Sequence[LayerLayout]], backends: Mapping[str, str]
) -> Iterator[GroupPart]:
    """Groups of layouts in order; in each, layers that are alike together."""
    for index, layouts in enumerate(groups):
        alike: dict[tuple[Any, ...], list[str]] = {}
        for layout in layouts:
            key = tuple(layer_values(layout, backends).values())
            alike.setdefault(key, []).append(layout.layer)
        for key, names in alike.items():
            yield GroupPart(index, tuple(names), *key)


def layer_values(layout: LayerLayout, backends: Mapping[str, str]) -> dict[str, Any]:
    return {
        "role": str(layout.role),
        "kind": str(layout.kind),
        "backend": backends.get(layout.layer, "-"),
        "page_bytes": layout.page_bytes,
        "padding_bytes": layout.padding_bytes,
    }


def served_groups(bound: BoundPlan) -> list[dict[str, Any]]:
    """What a page holds when each KV group has it, as plain values: bytes by role, and idle."""
    groups = []
    for index, layouts in enumerate(bound.layouts_by_group()):
        used: dict[str, int] = {}
        for layout in layouts:
            role = str(layout.role)
            used[role] = used.get(role, 0) + layout.used_bytes * bound.shapes[index].blocks
        idle = bound.bytes_per_block - sum(used.values())
        groups.append({"kv_group": index, "used_bytes": used, "idle_bytes": idle})
    return groups


def blocks_in_pages(blocks: int, shape: PageShape) -> str:
    return str(blocks) if shape == ONE_BLOCK else f"{blocks}, {shape.blocks} a page"


def group_table(
    parts: Iterable[GroupPart], heads: Sequence[tuple[int, str, int]], page_bytes: int
) -> list[Row]:
    """Header and rows. ``heads``: of each group tokens, blocks of a request, idle bytes."""
    rows: list[Row] = [
        ("group", "tokens", "blocks", "idle", "layers", "role", "kind", "backend", "page")
    ]
    shown: set[int] = set()
    for part in parts:
        tokens, blocks, idle = heads[part.group]
        head = (str(part.group), str(tokens), blocks, f"{idle / page_bytes:.1%}")
        page = format_bytes(part.page_bytes)
        if part.padding_bytes:
            page += f" ({format_bytes(part.padding_bytes)} padding)"
        layers = f"{part.abbreviated} ({len(part.layers)})"
        head = head if part.group not in shown else ("",) * 4
        rows.append((*head, layers, part.role, part.kind, part.backend, page))
        shown.add(part.group)
    return rows


def pool_lines(pool: Pool, shapes: Iterable[PageShape]) -> tuple[str, str]:
    """Two lines on a pool: what it is, and why, with which layers."""
    what = f"{pool.storage}: {format_bytes(pool.bytes_per_block)} a {counted_in(shapes)}"
    what += f" in {count(len(pool.buffers), 'buffer')}"
    layers = ", ".join(abbreviated_names(member.layer for member in pool.layers))
    return what, f"  because {pool.reason}; {layers}"


def served_text(
    bound: BoundPlan,
    request_tokens: int,
    request_blocks: Sequence[int],
    backends: Mapping[str, str],
) -> str:
    """Groups, pools and the cost of one request of a plan that an engine serves from.

    Args:
        request_blocks: for each KV group the blocks that one request of ``request_tokens`` tokens
            holds at most, as the scheduler admits it.
        backends: backend by layer.
    """
    if not bound.groups:
        return "KV cache plan: no layer keeps keys, values or states"
    size, word = bound.bytes_per_block, counted_in(bound.shapes)
    capacities = bound.capacity()
    pairs = list(zip(request_blocks, bound.shapes, strict=True))
    held = [shape.pages(blocks) for blocks, shape in pairs]
    heads = [
        (
            group.tokens_per_block,
            blocks_in_pages(pages * group.shape.blocks, group.shape),
            part.idle_bytes,
        )
        for group, pages, part in zip(bound.groups, held, capacities, strict=True)
    ]
    pages = sum(held)
    used = sum(number * part.used_bytes for number, part in zip(held, capacities, strict=True))
    padding = 1 - used / (pages * size) if pages else 0.0
    share = sum(shape.share(blocks) for blocks, shape in pairs)
    at_once = (bound.num_blocks - NULL_BLOCKS) / (share or 1)
    parts = group_parts(bound.layouts_by_group(), backends)
    return "\n".join(
        (
            f"KV cache plan: {count(len(bound.groups), 'group')}, "
            f"{count(bound.num_blocks, word)} of {format_bytes(size)}, "
            f"{format_bytes(bound.total_bytes)} in all on each rank",
            *aligned(group_table(parts, heads, size)),
            *(f"  {pool_lines(pool, bound.shapes)[0]}" for pool in bound.pools),
            f"One request of {count(request_tokens, 'token')} takes {count(pages, word)} "
            f"({format_bytes(pages * size)}, {padding:.1%} padding): {at_once:.2f} at once",
        )
    )


def aligned(rows: Sequence[Row]) -> list[str]:
    """Rows as lines with columns of equal width, two spaces in."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  " + "  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
