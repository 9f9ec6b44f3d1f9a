# SPDX-License-Identifier: Apache-2.0
"""What a worker answers to ``collective_rpc``, on every host and model runner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkv_ascend.adapters.common.drafting.assembly import Assembly
    from mkv_ascend.attention.report import LayerRow


def attention_layers(rows: Sequence[LayerRow]) -> list[dict[str, Any]]:
    """Which backend serves which layer; for ``collective_rpc("attention_layers")``."""
    return [asdict(row) for row in rows]


def draft_replays(assembly: Assembly | None) -> dict[str, Any]:
    """Numbers of requests for which the draft's passes are captured, and how often they were
    replayed; how often the host waited for the lengths of a proposal, replayed or not; and how many
    passes proposals took.

    For ``collective_rpc("draft_replays")``.
    """
    graphs = None if assembly is None else assembly.graphs
    proposal = None if assembly is None else assembly.proposal
    return {
        "captured": [] if graphs is None else sorted({shape.requests for shape in graphs.captured}),
        "replays": 0 if graphs is None else graphs.replays,
        "host_waits": 0 if proposal is None else proposal.plan.host_reads,
        "passes": 0 if proposal is None else proposal.counts.passes,
    }
