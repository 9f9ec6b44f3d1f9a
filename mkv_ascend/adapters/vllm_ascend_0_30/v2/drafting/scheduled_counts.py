# SPDX-License-Identifier: Apache-2.0
"""K by batch size (``num_speculative_tokens_per_batch_size``) on model runner V2.

The scheduler takes K from a table by the number of requests of a step, and with asynchronous
scheduling it lets the next step verify so many. The runner is not told. It has the same table, and
the same number of requests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm.v1.spec_decode.dynamic.utils import build_dynamic_sd_schedule_lookup
from vllm.v1.worker.gpu.spec_decode.utils import DraftTokensHandler

from mkv_ascend.adapters.patching import override, record
from mkv_ascend.drafting.draft_counts import DraftCounts

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig

SCHEDULED = record(
    name="draft tokens that a scheduler without asynchrony is told of",
    target=(
        "vllm.v1.worker.gpu.spec_decode.utils:DraftTokensHandler.__init__",
        "vllm.v1.worker.gpu.spec_decode.utils:DraftTokensHandler.set_draft_tokens",
    ),
    reads=(
        "vllm.v1.core.sched.async_scheduler:AsyncScheduler._update_after_schedule",
        "vllm.v1.core.sched.scheduler:Scheduler.update_draft_token_ids",
        "vllm.v1.worker.gpu.cudagraph_utils:CudaGraphManager._init_candidates",
    ),
    writes=("draft_tokens_handler",),
    why="Without asynchronous scheduling vLLM's scheduler verifies as many tokens as the runner "
    "names, and model runner V2 names K of the configuration, whatever the batch: K by batch size "
    "has no effect there.",
    until="model runner V2 reads num_spec_tokens_to_schedule",
    test="tests/emulated/runner_v2/test_following_loads.py",
)


def counts_of(config: VllmConfig) -> DraftCounts | None:
    """K by batch size as the scheduler has it; None where K is the same for all."""
    speculative = config.speculative_config
    if speculative is None or not speculative.uses_dynamic_speculative_decoding():
        return None
    return DraftCounts(
        build_dynamic_sd_schedule_lookup(
            speculative.num_speculative_tokens_per_batch_size,
            vllm_max_batch_size=config.scheduler_config.max_num_seqs,
            vllm_num_speculative_tokens=speculative.num_speculative_tokens,
        )
    )


class ScheduledDrafts(DraftTokensHandler):
    """Tells the scheduler of so many tokens as are drafted for a batch of its size."""

    @override(SCHEDULED)
    def __init__(self, device: torch.device, counts: DraftCounts) -> None:
        super().__init__(device)
        self._counts = counts

    @override(SCHEDULED)
    def set_draft_tokens(self, input_batch: Any, draft_tokens: torch.Tensor) -> None:
        """Keep the first K of the draft tokens, [B, largest K]."""
        tokens = self._counts.by_requests[input_batch.num_reqs]
        super().set_draft_tokens(input_batch, draft_tokens[:, :tokens])
