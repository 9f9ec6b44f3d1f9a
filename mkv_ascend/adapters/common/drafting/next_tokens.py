# SPDX-License-Identifier: Apache-2.0
"""The token after each chunk of a prompt; a head on hidden states takes it with its last row.

The target samples no token for a request that is still in prefill. vllm-ascend 0.23.0 (like vLLM
0.23.0) uses the last token of the whole prompt in place of the sampled one. A head keeps the key
that it makes from it. So each chunk leaves one wrong key for the life of the request.
"""

from __future__ import annotations

import copy
from typing import Any


def batch_up_to_the_chunk(runner: Any, batch: Any, num_discarded: int) -> Any:
    """A copy of the runner's input batch for ``prepare_next_token_ids_padded``.

    For an unfinished prefill the number of tokens is the end of its chunk plus one, because the
    token before that number is taken.
    """
    if not num_discarded:
        return batch
    unfinished = runner.discard_request_indices.np[:num_discarded]
    # The runner leaves out of sampling those whose length here is less than their tokens.
    lengths = runner.optimistic_seq_lens_cpu.numpy()
    num_tokens = batch.num_tokens_no_spec.copy()
    num_tokens[unfinished] = lengths[unfinished] + 1
    same = copy.copy(batch)
    same.num_tokens_no_spec = num_tokens
    return same
