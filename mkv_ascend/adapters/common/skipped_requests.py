# SPDX-License-Identifier: Apache-2.0
"""Requests that sit out a step keep what was accepted of their drafts.

A verification leaves a state after each of its tokens. The next step of a request starts from that
after the last accepted token, so the runner keeps how many were accepted, by row of the batch. A
request for which a step has no tokens left loses its row, and finds the number 1 when it is back:
its states then end before tokens that were accepted.
"""

from __future__ import annotations

from typing import Any

from mkv_ascend.adapters.common.patches.gdn_rows import build_of_padded_rows

ACCEPTED = build_of_padded_rows.record
"""Numbers are kept for the same purpose as rows are padded there."""


class SkippedRequests:
    """Accepted tokens of the last step of requests that have lost their rows."""

    def __init__(self) -> None:
        self._accepted: dict[str, int] = {}

    def note(self, runner: Any, step: Any) -> None:
        """Keep the numbers of requests that ``step``, a SchedulerOutput, leaves out.

        Called while the batch still has the rows of the last step. Waits for the device only if a
        request is left out.
        """
        gone = leaving(step)
        for request in gone:
            self._accepted.pop(request, None)
        if runner.num_accepted_tokens_event is None:  # a target without states
            return
        rows = runner.input_batch.req_id_to_index
        skipped = rows.keys() - step.num_scheduled_tokens.keys() - gone
        if not skipped:
            return
        runner.num_accepted_tokens_event.synchronize()
        of_batch = runner.input_batch.num_accepted_tokens_cpu
        accepted = runner.num_accepted_tokens.np if runner.use_async_scheduling else of_batch
        self._accepted.update((request, int(accepted[rows[request]])) for request in skipped)

    def restore(self, runner: Any) -> None:
        """Write the numbers of requests that are back into their new rows."""
        rows = runner.input_batch.req_id_to_index
        for request in self._accepted.keys() & rows.keys():
            number = self._accepted.pop(request)
            runner.num_accepted_tokens.np[rows[request]] = number
            runner.input_batch.num_accepted_tokens_cpu[rows[request]] = number


def leaving(step: Any) -> set[str]:
    """Requests whose states ``step``, a SchedulerOutput, says are lost or begun anew."""
    resumed = step.scheduled_cached_reqs.resumed_req_ids
    return {*step.finished_req_ids, *(step.preempted_req_ids or ()), *resumed}
