# SPDX-License-Identifier: Apache-2.0
"""What a worker of model runner V1 proposes while its scheduler runs ahead.

Neither that scheduler nor the runner knows the tokens that a draft follows when it is made: the
runner keeps the sampled ones on the device. So they are gathered here, as they are sampled.
"""

from __future__ import annotations

from typing import Any


def record(runner: Any, noted: list[tuple[list[int], int, list[int]]]) -> None:
    """Add to ``noted`` each proposal from now on, with all tokens before it and the prompt's."""
    propose, known = runner.propose_draft_token_ids, {}

    def noting(sampled: Any, sampling: Any, scheduled: Any, *arguments: Any) -> Any:
        drafted = propose(sampled, sampling, scheduled, *arguments)
        requests = runner.input_batch.req_ids
        # Of a preempted request tokens on their way are dropped, and sampled once more.
        known.update(scheduled.scheduled_cached_reqs.all_token_ids)
        rows = zip(requests, sampled.tolist(), drafted.tolist(), strict=True)
        for place, (request, tokens, draft) in enumerate(rows):
            prompt = runner.requests[request].prompt_token_ids
            before = known.setdefault(request, list(prompt))
            # More of the prompt follows: what was sampled behind its chunk is dropped.
            if not runner.discard_request_mask.np[place]:
                known[request] = [*before, *(token for token in tokens if token >= 0)]
                noted.append((known[request], len(prompt), draft))
        return drafted

    runner.propose_draft_token_ids = noting
