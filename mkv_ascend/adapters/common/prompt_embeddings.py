# SPDX-License-Identifier: Apache-2.0
"""Which positions of a batch hold tokens, where prompts may be given as embeddings.

With ``--enable-prompt-embeds`` vLLM takes embeddings of the positions that its batch marks as
tokens, and for all others what a request came with. With asynchronous scheduling model runner V1
marks one position a step, and a step with drafts has more: the target would read the embeddings of
other rows there. Behind a prompt every position is a token.
"""

from __future__ import annotations

from typing import Any


def mark_tokens(runner: Any, step: Any) -> None:
    """Mark what ``step``, a ``SchedulerOutput``, schedules behind prompts as tokens.

    Called once the batch of the runner is that of the step.
    """
    if not (runner.enable_prompt_embeds and runner.num_spec_tokens):
        return
    batch = runner.input_batch
    for row, request in enumerate(batch.req_ids):
        computed = int(batch.num_computed_tokens_cpu[row])
        # With asynchronous scheduling drafts count as accepted until the device says otherwise.
        first = max(computed - runner.num_spec_tokens, int(batch.num_prompt_tokens[row]))
        batch.is_token_ids[row, first : computed + step.num_scheduled_tokens.get(request, 0)] = True
