# SPDX-License-Identifier: Apache-2.0
"""Recurrent states of pipeline stages before the last one go back to the last accepted token.

A verification leaves a state after each of its tokens. The last stage samples, and knows at once
after which of them a request goes on. A stage before it is told with the request's next step: the
scheduler has taken rejected tokens off those that are computed.

Where states at the ends of blocks are kept for prefix hits, one that a verification has reached
is copied to its block then, too. No other request can find it before: the scheduler gives a block
its hash with that same step, and lets no request of the same step read it.
"""

from __future__ import annotations

from typing import Any

import torch

from mkv_ascend.adapters.common.skipped_requests import leaving
from mkv_ascend.drafting.stages import StepOfRequest


class StatesOfEarlierStage:
    """What a stage before the last one knows of its requests' last steps.

    It stands in for ``SkippedRequests``: requests that sit out a step are told with their next one.
    """

    def __init__(self) -> None:
        self._steps: dict[str, StepOfRequest] = {}
        self._before: dict[str, StepOfRequest] = {}
        self._accepted: dict[str, int] = {}

    def note(self, runner: Any, step: Any) -> None:
        """Find what was accepted of the last steps of requests that ``step`` goes on with.

        Called before the runner takes the SchedulerOutput in.
        """
        for request in leaving(step):
            self._steps.pop(request, None)
        if not runner.model_config.is_hybrid:
            return
        cached = step.scheduled_cached_reqs
        computed = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        self._before = {name: self._steps[name] for name in computed if name in self._steps}
        self._accepted = {
            name: last.accepted(computed[name]) for name, last in self._before.items()
        }
        computed.update((new.req_id, new.num_computed_tokens) for new in step.scheduled_new_reqs)
        drafts = step.scheduled_spec_decode_tokens
        for name, tokens in step.num_scheduled_tokens.items():
            self._steps[name] = StepOfRequest(computed[name], tokens, len(drafts.get(name, ())))

    def restore(self, runner: Any) -> None:
        """Write the numbers into the rows of their requests, and copy states at ends of blocks."""
        rows, batch = runner.input_batch.req_id_to_index, runner.input_batch
        for request, accepted in self._accepted.items():
            batch.num_accepted_tokens_cpu[rows[request]] = accepted
        if runner.cache_config.mamba_cache_mode == "align" and self._end_of_block(runner):
            self._copy(runner)
        count = batch.num_reqs
        runner.num_accepted_tokens.np[:count] = batch.num_accepted_tokens_cpu[:count]

    def _end_of_block(self, runner: Any) -> bool:
        """Whether a verification has reached the end of a block."""
        size = runner._get_mamba_bufs().postprocess_align.block_size
        return any(
            last.ends_block(self._accepted[name], size) for name, last in self._before.items()
        )

    def _copy(self, runner: Any) -> None:
        """Run what vLLM runs behind each step of the last stage, for the requests' last steps.

        Their numbers come from pageable memory: the host's own buffers are written once more before
        the device may have read them.
        """
        batch, inputs = runner.input_batch, runner._get_mamba_bufs().postprocess_align
        count = batch.num_reqs
        # Requests without a last step: one token of a block, whose end it does not reach.
        steps = [self._before.get(name, StepOfRequest(0, 1, 0)) for name in batch.req_ids]
        columns = [
            runner.mamba_state_idx[name] if name in self._before else 0 for name in batch.req_ids
        ]
        for buffer, values in (
            (inputs.mamba_state_idx_buf, columns),
            (inputs.num_scheduled_tokens_buf, [step.scheduled for step in steps]),
            (inputs.num_computed_tokens_buf, [step.computed for step in steps]),
            (inputs.num_draft_tokens_buf, [step.drafts for step in steps]),
        ):
            buffer.gpu[:count].copy_(torch.tensor(values, dtype=buffer.gpu.dtype))
        accepted = torch.from_numpy(batch.num_accepted_tokens_cpu[:count].copy())
        columns_of = torch.arange(1 + runner.num_spec_tokens)
        sampled = torch.where(columns_of < accepted[:, None], 0, -1).to(runner.device)
        runner._update_states_after_model_execute(sampled, None)
        runner.num_accepted_tokens_event.synchronize()
