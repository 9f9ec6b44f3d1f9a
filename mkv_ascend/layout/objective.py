# SPDX-License-Identifier: Apache-2.0
"""Which of the groupings that a search found is chosen, and what a KV group is worth.

Memory limits how many requests run at once; every group costs time on the host in every step, for
its block table, its slots and its metadata. Throughput is (requests at once) / (time of a step), so
what is made small is ``bytes of a request x (1 + PRICE_OF_A_GROUP x groups)``. The derivation and
the measurement are in docs/kv_groups.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mkv_ascend.layout.kind import Word

MIB = 2**20

PRICE_OF_A_GROUP = 0.003
"""Share of a step's time that one more KV group costs; see docs/kv_groups.md."""
MOST_EXTRA_MEMORY = 0.08
"""Share of the least memory that fewer groups may cost on top of it, when nothing is asked for."""
USUAL_MOST_GROUPS = 16
"""More groups than these are taken only where ``MOST_EXTRA_MEMORY`` does not buy fewer."""

MOST_GROUPS = 32
"""More than these are taken only where no grouping has fewer, whatever the memory."""


class Objective(Word):
    """What to minimise."""

    BALANCED = "balanced"
    """Memory and groups, each group at ``PRICE_OF_A_GROUP``."""
    FEWEST_GROUPS = "fewest_groups"
    """Fewest KV groups near the least memory; never more of them than ``BALANCED`` takes."""
    LEAST_MEMORY = "least_memory"
    """Least memory of one request, then fewest KV groups."""

    @property
    def other(self) -> Objective:
        """The objective whose price is shown beside this one's."""
        return _OTHER[self]


_OTHER = {
    Objective.BALANCED: Objective.LEAST_MEMORY,
    Objective.FEWEST_GROUPS: Objective.LEAST_MEMORY,
    Objective.LEAST_MEMORY: Objective.BALANCED,
}


@dataclass(frozen=True)
class Cost:
    """What a grouping costs one request. ``needed_bytes``: the same without any padding.

    ``block_bytes``: bytes of one block id over all pools; ``blocks``: that the request holds.
    """

    groups: int
    held_bytes: int
    needed_bytes: int
    block_bytes: int = 0
    blocks: int = 0

    @property
    def padding_fraction(self) -> float:
        """Share of the held bytes that holds nothing of the request."""
        return max(0.0, 1 - self.needed_bytes / self.held_bytes) if self.held_bytes else 0.0

    def num_blocks_in(self, memory_bytes: int | None) -> int | None:
        """Blocks that fit into the memory; None where that or the bytes of a block are unknown."""
        return memory_bytes // self.block_bytes if memory_bytes and self.block_bytes else None

    def requests_in(self, memory_bytes: int | None) -> float | None:
        """Requests that fit at once, vLLM's null block taken off."""
        found = self.num_blocks_in(memory_bytes)
        return None if found is None or not self.blocks else max(found - 1, 0) / self.blocks

    @property
    def price(self) -> float:
        """Bytes, with the share of its throughput that a request loses to the groups."""
        return self.held_bytes * (1 + PRICE_OF_A_GROUP * self.groups)

    def __str__(self) -> str:
        groups = f"{self.groups} group" + ("s" if self.groups != 1 else "")
        return f"{groups}, {self.held_bytes / MIB:.0f} MiB, {self.padding_fraction:.1%} padding"


def choose(
    objective: Objective,
    costs: Sequence[Cost],
    max_padding_fraction: float | None,
    most_bytes: int | None = None,
) -> int | None:
    """Index of the grouping to take; None if none keeps to ``max_padding_fraction``.

    ``costs``: more groups and fewer bytes from one to the next. A limit of padding takes the place
    of the price: the fewest groups that keep to it are taken. ``most_bytes``: that a request holds
    without any of this; the price of groups buys nothing that holds more.
    """
    limit = 1.0 if max_padding_fraction is None else max_padding_fraction
    few_enough = (i for i, cost in enumerate(costs) if cost.padding_fraction <= limit)
    allowed = range(next(few_enough, len(costs)), len(costs))
    if not allowed:
        return None
    if objective is Objective.LEAST_MEMORY:
        return allowed[-1]
    if max_padding_fraction is not None:
        return allowed[0]
    near = [
        index
        for index in allowed
        if costs[index].held_bytes <= (1 + MOST_EXTRA_MEMORY) * costs[-1].held_bytes
    ]
    fewest = near[0]
    if most_bytes is not None:
        near = [index for index in near if costs[index].held_bytes <= most_bytes] or near
    few = [index for index in near if costs[index].groups <= USUAL_MOST_GROUPS] or near[:1]
    if costs[few[0]].groups > MOST_GROUPS:
        # So many groups cost more than the memory does: at a higher price fewer are better.
        few = [index for index in allowed if costs[index].groups <= MOST_GROUPS] or [allowed[0]]
    balanced = min(few, key=lambda index: (costs[index].price, index))
    return min(fewest, balanced) if objective is Objective.FEWEST_GROUPS else balanced
