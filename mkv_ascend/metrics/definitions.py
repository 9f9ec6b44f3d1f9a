# SPDX-License-Identifier: Apache-2.0
"""Every metric of mkv_ascend, for whoever writes, reads or documents it.

Names begin as the package does. Colons, which vLLM's names have, are for recording rules.
``python -m mkv_ascend.metrics.definitions`` prints the table of docs/metrics.md. Standard library
only.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

COUNTER, GAUGE = "counter", "gauge"
COMMON_LABELS = ("model_name", "engine")
"""Labels of every metric, with the values that vLLM's own metrics have."""


@dataclass(frozen=True)
class Metric:
    """One metric; ``labels``: those beside ``COMMON_LABELS``."""

    name: str
    kind: str
    labels: tuple[str, ...]
    help: str

    @property
    def family(self) -> str:
        """The name without what Prometheus asks of a counter's samples."""
        return self.name.removesuffix("_total")


PROPOSALS = Metric(
    "mkv_ascend_proposals_total",
    COUNTER,
    ("mode", "reason"),
    "Proposals, each for all requests of a step; replayed from an ACL graph, or eager and why.",
)
DRAFT_TOKENS = Metric(
    "mkv_ascend_proposed_tokens_total",
    COUNTER,
    ("k",),
    "Draft tokens proposed, by the number proposed for each request (K).",
)
PASSES = Metric(
    "mkv_ascend_draft_passes_total",
    COUNTER,
    ("purpose",),
    "Forwards of the draft, replayed ones included: for proposals, or to read prefix hits.",
)
METADATA_BUILDS = Metric(
    "mkv_ascend_metadata_builds_total",
    COUNTER,
    (),
    "Runs of attention metadata builders for the draft's passes.",
)
HOST_READS = Metric(
    "mkv_ascend_host_reads_total",
    COUNTER,
    (),
    "Times that the host waited for lengths of a proposal's passes from device memory.",
)
VERIFIED = Metric(
    "mkv_ascend_verified_proposals_total",
    COUNTER,
    ("k",),
    "Verified proposals of single requests, by their number of draft tokens (K).",
)
ACCEPTED = Metric(
    "mkv_ascend_accepted_tokens_total",
    COUNTER,
    ("k", "position"),
    "Accepted draft tokens, by the number proposed (K) and the position from 0.",
)
DRAFT_GIVEN_UP = Metric(
    "mkv_ascend_draft_given_up",
    GAUGE,
    (),
    "1 where the draft was given up (drafting.give_up_below) and runs no more, else 0.",
)
KV_BLOCKS = Metric(
    "mkv_ascend_kv_blocks",
    GAUGE,
    (),
    "KV blocks of the planned caches.",
)
KV_CACHE_BYTES = Metric(
    "mkv_ascend_kv_cache_bytes",
    GAUGE,
    (),
    "Device memory of the planned caches of one rank.",
)
KV_BLOCK_BYTES = Metric(
    "mkv_ascend_kv_block_bytes",
    GAUGE,
    ("kv_group", "role"),
    "Bytes of one block that layers of a role (target, draft) use when the KV group holds it.",
)
KV_BLOCK_IDLE_BYTES = Metric(
    "mkv_ascend_kv_block_idle_bytes",
    GAUGE,
    ("kv_group",),
    "Bytes of one block that no layer uses when the KV group holds it.",
)
GRAPHS = Metric(
    "mkv_ascend_graphs",
    GAUGE,
    ("role",),
    "ACL graphs captured at start-up; those of the draft are counted.",
)
GRAPH_BYTES = Metric(
    "mkv_ascend_graph_memory_bytes",
    GAUGE,
    ("role",),
    "Device memory that these graphs keep.",
)
METRICS = (
    PROPOSALS,
    DRAFT_TOKENS,
    VERIFIED,
    ACCEPTED,
    DRAFT_GIVEN_UP,
    PASSES,
    METADATA_BUILDS,
    HOST_READS,
    KV_BLOCKS,
    KV_CACHE_BYTES,
    KV_BLOCK_BYTES,
    KV_BLOCK_IDLE_BYTES,
    GRAPHS,
    GRAPH_BYTES,
)
"""All metrics, in the order of the documentation."""


def markdown_table() -> str:
    """The table of docs/metrics.md."""
    lines = ["| metric | type | labels | meaning |", "| --- | --- | --- | --- |"]
    for metric in METRICS:
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        lines.append(f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(markdown_table())
