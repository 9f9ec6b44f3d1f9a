# SPDX-License-Identifier: Apache-2.0
"""A worker's metrics: gauges set once, counters written after each proposal."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from mkv_ascend.layout.kind import Role
from mkv_ascend.layout.plan import BoundPlan
from mkv_ascend.layout.report import served_groups
from mkv_ascend.metrics import definitions as metrics
from mkv_ascend.metrics.store import Store

if TYPE_CHECKING:
    from mkv_ascend.adapters.common.drafting.assembly import Assembly
    from mkv_ascend.adapters.common.drafting.capture_cost import CaptureCost

REPLAYED, EAGER = "replayed", "eager"
PROPOSAL, PREFIX_HIT = "proposal", "prefix_hit"


def publish_gauges(store: Store, plan: BoundPlan | None, costs: Mapping[Role, CaptureCost]) -> None:
    """Tell what stays as it is: caches, if they are planned, and graphs."""
    if plan is not None:
        store.set(metrics.KV_BLOCKS, plan.num_blocks)
        store.set(metrics.KV_CACHE_BYTES, plan.total_bytes)
        for group in served_groups(plan):
            for role, used in group["used_bytes"].items():
                store.set(metrics.KV_BLOCK_BYTES, used, group["kv_group"], role)
            store.set(metrics.KV_BLOCK_IDLE_BYTES, group["idle_bytes"], group["kv_group"])
    for role, cost in costs.items():
        store.set(metrics.GRAPHS, cost.graphs, role)
        store.set(metrics.GRAPH_BYTES, cost.kept_bytes, role)


def publisher(store: Store, assembly: Assembly) -> Callable[[], None]:
    """What writes the counts of proposals; those of before, of captures, are left out."""
    proposal = assembly.proposal
    counts, needs, plan = proposal.counts, proposal.needs, proposal.plan
    built, read = needs.builds, plan.host_reads

    def publish() -> None:
        for eager, number in counts.proposals.items():
            mode, reason = (REPLAYED, "") if eager is None else (EAGER, eager.value)
            store.set(metrics.PROPOSALS, number, mode, reason)
        for k, number in counts.tokens.items():
            store.set(metrics.DRAFT_TOKENS, number, k)
        store.set(metrics.PASSES, counts.passes, PROPOSAL)
        store.set(metrics.PASSES, counts.prefix_hit_passes, PREFIX_HIT)
        store.set(metrics.METADATA_BUILDS, needs.builds - built)
        store.set(metrics.HOST_READS, plan.host_reads - read)

    publish()
    return publish
