# SPDX-License-Identifier: Apache-2.0
"""A draft's recurrent states behind prefix hits, in model runner V2.

What the target does with its own states there, and how the draft rebuilds its own, is the same in
both runners (``target_state_groups.py``, ``rebuilding_states.py``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from mkv_ascend.adapters.common.rebuilding_states import BatchTokens
from mkv_ascend.adapters.patching import record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vllm_ascend.worker.v2.input_batch import AscendInputBatch

    from mkv_ascend.drafting.lost_states import Chunk


REQUESTS_BEHIND_HITS = record(
    name="states of a draft behind prefix hits in model runner V2",
    target="vllm_ascend.worker.worker:NPUWorker.execute_model",
    reads=(
        "vllm.v1.worker.gpu.states:RequestState.add_request",
        "vllm.v1.worker.gpu.model_runner:GPUModelRunner.add_requests",
    ),
)


def tokens_on_the_device(batch: AscendInputBatch, ids: torch.Tensor) -> BatchTokens:
    """Of this step, from ``ids``: the runner's, int32 ``[requests of the engine, tokens]``."""
    places = batch.idx_mapping_np

    def of(chunks: Sequence[Chunk]) -> torch.Tensor:
        return torch.cat([ids[places[chunk.row], chunk.start : chunk.end] for chunk in chunks])

    return BatchTokens({request: row for row, request in enumerate(batch.req_ids)}, of)
