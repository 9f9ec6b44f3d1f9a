# SPDX-License-Identifier: Apache-2.0
"""The plan that an engine serves from, as a few lines for its log at start-up.

Where ``report`` shows what could be had, this shows what is there: caches of a known number of
blocks, in the groups that the scheduler has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mkv_ascend.layout.admission import NULL_BLOCKS
from mkv_ascend.layout.bound import BoundPlan
from mkv_ascend.layout.component import LayerLayout
from mkv_ascend.layout.report import group_parts, pool_parts
from mkv_ascend.layout.report_text import aligned, count, format_bytes, group_table, pools_of

__all__ = ["ServedPlan"]


@dataclass(frozen=True)
class ServedPlan:
    """Caches with their number of blocks.

    ``request_blocks``: for each KV group the blocks that one request of ``request_tokens`` tokens
    holds at most, as the scheduler admits it. ``backends``: backend by layer.
    """

    plan: BoundPlan
    request_tokens: int
    request_blocks: Sequence[int]
    backends: Mapping[str, str] = field(default_factory=dict)

    @property
    def bytes_per_block(self) -> int:
        """Bytes of one block id over all pools."""
        return sum(pool.bytes_per_block for pool in self.plan.pools)

    @property
    def request_bytes(self) -> int:
        """Bytes of all blocks of one request."""
        return sum(self.request_blocks) * self.bytes_per_block

    @property
    def padding_fraction(self) -> float:
        """The part of those bytes in which no layer of the block's group keeps anything."""
        pairs = zip(self.request_blocks, self._groups(), strict=True)
        used = sum(blocks * _used(layouts) for blocks, layouts in pairs)
        return 1 - used / self.request_bytes if self.request_bytes else 0.0

    @property
    def max_concurrency(self) -> float:
        """Requests of that length at once, vLLM's null block taken off."""
        return (self.plan.num_blocks - NULL_BLOCKS) / max(1, sum(self.request_blocks))

    def _groups(self) -> list[list[LayerLayout]]:
        group_of = {
            member.layer: member.group for pool in self.plan.pools for member in pool.layers
        }
        groups: list[list[LayerLayout]] = [[] for _ in self.request_blocks]
        for layout in self.plan.layers:
            groups[group_of[layout.layer]].append(layout)
        return groups

    def text(self) -> str:
        """Groups, pools, and what one request costs."""
        groups = self._groups()
        heads = [
            (layouts[0].tokens_per_block, blocks, 1 - _used(layouts) / self.bytes_per_block)
            for layouts, blocks in zip(groups, self.request_blocks, strict=True)
        ]
        number = count(self.plan.num_blocks, "block")
        return "\n".join(
            (
                f"KV cache plan: {count(len(groups), 'group')}, {number} of "
                f"{format_bytes(self.bytes_per_block)}, {format_bytes(self.plan.total_bytes)} in "
                "all on each rank",
                *aligned(group_table(group_parts(groups, self.backends), heads)),
                *(
                    f"  {pools_of(part)[0]}; {part.abbreviated}"
                    for part in pool_parts(self.plan.pools)
                ),
                f"One request of {count(self.request_tokens, 'token')} takes "
                f"{count(sum(self.request_blocks), 'block')} ({format_bytes(self.request_bytes)}, "
                f"{self.padding_fraction:.1%} padding): {self.max_concurrency:.2f} at once",
            )
        )


def _used(layouts: Sequence[LayerLayout]) -> int:
    return sum(layout.used_bytes for layout in layouts)
