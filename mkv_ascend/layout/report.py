# SPDX-License-Identifier: Apache-2.0
"""A plan as something to look at: its groups, pools and costs, beside vLLM's own grouping.

``PlanReport`` gathers what is known; ``report_text`` shows it, ``to_dict`` is its JSON. Nothing is
decided here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mkv_ascend.layout.component import LayerLayout
from mkv_ascend.layout.grouping import NULL_BLOCKS, Cost, Grouping
from mkv_ascend.layout.kind import Role, abbreviated_names
from mkv_ascend.layout.plan import BoundPlan, CachePlan
from mkv_ascend.layout.planning import ServingPlan
from mkv_ascend.layout.pooling import PlacedLayer, page_bytes
from mkv_ascend.layout.requirements import Request

FORMAT_VERSION = 1


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
            key = tuple(_layer(layout, backends).values())
            alike.setdefault(key, []).append(layout.layer)
        for key, names in alike.items():
            yield GroupPart(index, tuple(names), *key)


def _layer(layout: LayerLayout, backends: Mapping[str, str]) -> dict[str, Any]:
    return {
        "role": str(layout.role),
        "kind": str(layout.kind),
        "backend": backends.get(layout.layer, "-"),
        "page_bytes": layout.page_bytes,
        "padding_bytes": layout.padding_bytes,
    }


@dataclass(frozen=True)
class PlanReport:
    """A plan with all that a reader may ask of it.

    ``subjects``: what was planned, as pairs of word and text. ``memory_bytes``: memory of the
    caches on one device, None when it is not known. ``other``: vLLM's own grouping, None with the
    reason in ``other_absent``.
    """

    subjects: tuple[tuple[str, str], ...]
    planned: ServingPlan
    memory_bytes: int | None = None
    other: OtherGrouping | None = None
    other_absent: str = "it was not asked for"
    notes: tuple[str, ...] = ()

    @property
    def request(self) -> Request:
        return self.planned.inputs.request

    @property
    def grouping(self) -> Grouping:
        return self.planned.grouping

    @property
    def plan(self) -> CachePlan:
        return self.planned.plan

    @property
    def request_blocks(self) -> int:
        """Pages of all groups that one request holds: blocks, where a page is a block."""
        return self.grouping.cost.pages

    @property
    def request_bytes(self) -> int:
        return self.grouping.cost.held_bytes

    @property
    def num_blocks(self) -> int | None:
        """Blocks that fit into the memory; None when that is not known."""
        return None if self.memory_bytes is None else self.plan.num_blocks_in(self.memory_bytes)

    @property
    def max_concurrency(self) -> float | None:
        """Requests of full length that fit at once, vLLM's null block taken off."""
        if self.num_blocks is None or not self.request_blocks:
            return None
        pages = sum(group.page_share(self.request) for group in self.grouping.groups)
        return max(self.num_blocks - NULL_BLOCKS, 0) / pages

    @property
    def refusal(self) -> str | None:
        """Why no engine starts with this memory; None where one may, or none is known."""
        return None if self.num_blocks is None else self.planned.refusal(self.num_blocks)

    @property
    def other_cost(self) -> Cost | None:
        """What vLLM's own grouping costs; None where there is none."""
        if self.other is None or self.other.error:
            return None
        other, needed = self.other, self.grouping.cost.needed_bytes
        return Cost(other.groups, other.request_blocks, other.block_bytes, needed)

    def without_draft(self) -> Cost | None:
        """What the target's layers cost in these groups by themselves; None without a draft."""
        pairs = zip(self.plan.layouts_by_group(), self.grouping.groups, strict=True)
        own = [([x for x in layouts if x.role is Role.TARGET], group) for layouts, group in pairs]
        if sum(len(layouts) for layouts, _ in own) == len(self.plan.layers):
            return None
        kept = [(layouts, group) for layouts, group in own if layouts]
        pages = sum(group.pages(self.request) for _, group in kept)
        size = page_bytes([layouts for layouts, _ in kept], [group.shape for _, group in kept])
        return Cost(len(kept), pages, size)

    def group_parts(self) -> Iterator[GroupPart]:
        return group_parts(self.plan.layouts_by_group(), self.planned.backends)

    def to_dict(self) -> dict[str, Any]:
        """The report as plain values for JSON; sizes are in bytes."""
        return {
            "format": FORMAT_VERSION,
            "subjects": dict(self.subjects),
            "request": {
                "tokens": self.request.tokens,
                "tokens_per_step": self.request.tokens_per_step,
                "blocks": self.request_blocks,
                "bytes": self.request_bytes,
                "needed_bytes": self.grouping.cost.needed_bytes,
                "admission_blocks": sum(self.planned.admission_pages),
            },
            "padding_fraction": self.grouping.cost.padding_fraction,
            "prefix_hit_tokens": self.grouping.prefix_hit_tokens,
            "bytes_per_block": self.plan.bytes_per_block,
            "memory_bytes": self.memory_bytes,
            "num_blocks": self.num_blocks,
            "max_concurrency": self.max_concurrency,
            "refusal": self.refusal,
            "groups": list(self._groups()),
            "pools": [
                {
                    "storage": str(pool.storage),
                    "reason": pool.reason,
                    "buffers": list(pool.buffers),
                    "layers": [_placed(member) for member in pool.layers],
                }
                for pool in self.plan.pools
            ],
            "vllm": self._other(),
            "notes": list(self.notes),
        }

    def _groups(self) -> Iterator[dict[str, Any]]:
        chosen, capacities = self.grouping.groups, self.plan.capacity()
        for index, (planned, capacity) in enumerate(zip(self.plan.groups, capacities, strict=True)):
            layouts = (self.plan.layout_of[name] for name in planned.layers)
            yield {
                "tokens_per_block": planned.tokens_per_block,
                "kernel_block": planned.kernel_block,
                "blocks": chosen[index].blocks,
                "blocks_per_page": planned.shape.blocks,
                "admission_blocks": self.planned.admission_pages[index],
                "has_draft": chosen[index].has_draft,
                "used_bytes": capacity.used_bytes,
                "idle_bytes": capacity.idle_bytes,
                "layers": [{"name": x.layer, **_layer(x, self.planned.backends)} for x in layouts],
            }

    def _other(self) -> dict[str, Any]:
        cost = self.other_cost
        if self.other is None or cost is None:
            return {"error": self.other.error} if self.other else {"absent": self.other_absent}
        return {
            "groups": cost.groups,
            "request_bytes": cost.held_bytes,
            "padding_fraction": cost.padding_fraction,
            "num_blocks": cost.pages_in(self.memory_bytes),
            "max_concurrency": cost.requests_in(self.memory_bytes),
            "request_blocks": cost.pages,
            "bytes_per_block": cost.page_bytes,
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


def _placed(member: PlacedLayer) -> dict[str, Any]:
    return {
        "name": member.layer,
        "group": member.group,
        "components": {
            part.component: {"buffer": part.buffer, "bytes": part.rows * part.row_bytes}
            for part in member.placements
        },
    }
