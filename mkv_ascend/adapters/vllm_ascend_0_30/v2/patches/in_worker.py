# SPDX-License-Identifier: Apache-2.0
"""Which patches a worker process with model runner V2 needs before a model is built."""

from __future__ import annotations

from mkv_ascend.adapters.vllm_ascend_0_30.common.patches import in_worker
from mkv_ascend.adapters.vllm_ascend_0_30.v2.patches import (
    axes_in_turns,
    captures_of_each_count,
    graphs_of_each_count,
    launches_of_each_graph,
    order_of_rows,
    room_of_padded_rows,
    speculators,
    verify_steps,
)


def apply() -> None:
    """Apply them. Idempotent."""
    in_worker.apply()
    speculators.make_speculator.apply()
    verify_steps.update_for_verify_steps.apply()
    order_of_rows.sort_rows.apply()
    graphs_of_each_count.offer_graphs_of_each_count.apply()
    launches_of_each_graph.note_by_graph.apply()
    room_of_padded_rows.has_room.apply()
    captures_of_each_count.capture_any_count.apply()
    axes_in_turns.rotate_without_the_kernel.apply()
