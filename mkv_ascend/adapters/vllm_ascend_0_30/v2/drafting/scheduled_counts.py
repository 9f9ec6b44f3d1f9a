# SPDX-License-Identifier: Apache-2.0
"""The draft tokens that a scheduler is told of on model runner V2.

With K by batch size (``num_speculative_tokens_per_batch_size``) the scheduler takes K from a table
by the number of requests of a step, and with asynchronous scheduling it lets the next step verify
so many. The runner is not told. It has the same table, and the same number of requests.

An asynchronous scheduler asks for draft tokens where a grammar is to see them, before their
verification is sampled. Over pipeline stages other steps have run since they were drafted.
"""

from __future__ import annotations

from collections.abc import Container
from typing import TYPE_CHECKING, Any

from vllm.v1.outputs import DraftTokenIds
from vllm.v1.spec_decode.dynamic.utils import build_dynamic_sd_schedule_lookup
from vllm.v1.worker.gpu.spec_decode.utils import DraftTokensHandler

from mkv_ascend.adapters.patching import override, record
from mkv_ascend.drafting.counts import DraftCounts

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig

SCHEDULED = record(
    name="draft tokens that a scheduler is told of",
    target=(
        "vllm.v1.worker.gpu.spec_decode.utils:DraftTokensHandler.__init__",
        "vllm.v1.worker.gpu.spec_decode.utils:DraftTokensHandler.set_draft_tokens",
        "vllm.v1.worker.gpu.spec_decode.utils:DraftTokensHandler.get_draft_tokens",
    ),
    reads=(
        "vllm.v1.engine.core:EngineCore.step_with_batch_queue",
        "vllm.v1.core.sched.scheduler:Scheduler.update_draft_token_ids_in_output",
        "vllm.v1.core.sched.async_scheduler:AsyncScheduler._update_after_schedule",
        "vllm.v1.core.sched.scheduler:Scheduler.update_draft_token_ids",
        "vllm.v1.worker.gpu.cudagraph_utils:CudaGraphManager._init_candidates",
    ),
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
    """Tells the scheduler of so many tokens as are drafted for a batch of its size.

    Args:
        counts: K by batch size; None: the same for all.
        running: names of the requests that the runner has and may be asked for when other steps
            have run.
    """

    @override(SCHEDULED)
    def __init__(
        self, device: torch.device, counts: DraftCounts | None, running: Container[str]
    ) -> None:
        super().__init__(device)
        self._counts, self._running = counts, running
        self._latest: dict[str, Any] = {}

    @override(SCHEDULED)
    def set_draft_tokens(self, input_batch: Any, draft_tokens: torch.Tensor) -> None:
        """Keep the first K of the draft tokens, [B, largest K]; those of other requests stay."""
        if self._counts is not None:
            draft_tokens = draft_tokens[:, : self._counts.by_requests[input_batch.num_reqs]]
        super().set_draft_tokens(input_batch, draft_tokens)
        current = set(self.req_ids)
        self._latest = {
            name: row
            for name, row in self._latest.items()
            if name in self._running and name not in current
        }
        if self.draft_tokens_np is not None:
            self._latest.update(zip(self.req_ids, self.draft_tokens_np, strict=True))

    @override(SCHEDULED)
    def get_draft_tokens(self) -> DraftTokenIds | None:
        """Of the last step, and what was drafted last for requests that were not in it."""
        told: DraftTokenIds | None = super().get_draft_tokens()
        others = self._latest.keys() - set(self.req_ids)
        if told is None or not others:
            return told
        self.copy_event.synchronize()
        return DraftTokenIds(
            [*told.req_ids, *others],
            [*told.draft_token_ids, *(self._latest[name].tolist() for name in others)],
        )
