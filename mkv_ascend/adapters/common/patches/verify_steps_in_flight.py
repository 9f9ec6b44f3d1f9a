# SPDX-License-Identifier: Apache-2.0
"""What the scheduler must know of verify steps that run while it schedules the next batch.

In a pipeline the engine fills a queue of batches before it waits for the first one's output. A
request whose verify step runs has more computed tokens than tokens. vLLM would schedule it again,
for less than no tokens. It also asks for draft tokens before it knows the token that they follow.

Each host has a record of its own for these functions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm.v1.request import RequestStatus

from mkv_ascend.adapters.common.pipeline import DRAFTS

if TYPE_CHECKING:
    from vllm.v1.outputs import DraftTokenIds


def hold_back(scheduler: Any, scheduled: Any) -> None:
    """Count the drafts of each verify step that begins as tokens to come: none is left to schedule.

    ``scheduled``: the step's ``SchedulerOutput``, whose tokens already count as computed.
    """
    for request_id in scheduled.scheduled_cached_reqs.resumed_req_ids:
        # Preempted while a verify step of it ran.
        scheduler.requests[request_id].num_output_placeholders = 0
    for request_id in scheduled.scheduled_spec_decode_tokens:
        request = scheduler.requests[request_id]
        request.num_output_placeholders = request.num_computed_tokens - request.num_tokens


def release(scheduler: Any, scheduled: Any) -> None:
    """Undo ``hold_back``, before the output of ``scheduled`` is taken in."""
    verified = scheduled.scheduled_spec_decode_tokens
    for request_id in list(verified):
        request = scheduler.requests.get(request_id)
        if request is None:
            continue
        if request.num_output_placeholders == 0:
            # Resumed in between: rejected tokens are not among those computed since.
            del verified[request_id]
        request.num_output_placeholders = 0


def hand_out(scheduler: Any, output: Any) -> None:
    """Give the scheduler the draft tokens that came with a step's output, where they are newest.

    A chunk of a prompt may have run before the one that is under way; its drafts are void.
    """
    drafts: DraftTokenIds | None = getattr(output, DRAFTS, None)
    if drafts is None:
        return
    pairs = [
        (request_id, tokens)
        for request_id, tokens in zip(drafts.req_ids, drafts.draft_token_ids, strict=True)
        if _follow_its_newest_token(scheduler.requests.get(request_id))
    ]
    newest = type(drafts)([name for name, _ in pairs], [tokens for _, tokens in pairs])
    scheduler.update_draft_token_ids(newest)


def _follow_its_newest_token(request: Any) -> bool:
    """Whether a request runs, and nothing of it is under way."""
    return (
        request is not None
        and request.status == RequestStatus.RUNNING
        and request.num_computed_tokens == request.num_tokens - 1
    )
