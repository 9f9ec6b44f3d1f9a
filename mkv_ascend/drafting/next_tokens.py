# SPDX-License-Identifier: Apache-2.0
"""The token after each chunk of a prompt, which a head on hidden states takes with its last row.

Of a request that is still being prefilled the target samples nothing. vllm-ascend 0.23.0 (as vLLM
0.23.0) takes the last token of the whole prompt in the place of the sampled one. A head keeps the
key that it makes of it: one wrong key for each chunk, for as long as the request lives.
"""

from __future__ import annotations

import copy
from typing import Any


class NextTokensOfChunks:
    """Mixin over vllm-ascend's proposers: the next token of a chunk is the prompt's next one."""

    runner: Any

    def prepare_next_token_ids_padded(
        self,
        sampled_token_ids: Any,
        requests: Any,
        gpu_input_batch: Any,
        discard_request_indices: Any,
        num_discarded_requests: int,
    ) -> Any:
        """As vllm-ascend's, with the number of tokens of an unfinished prefill set to its chunk's
        end and one more, since the token before that number is taken."""
        batch = gpu_input_batch
        if num_discarded_requests:
            batch = self._up_to_the_next_token(gpu_input_batch, num_discarded_requests)
        return super().prepare_next_token_ids_padded(  # type: ignore[misc]
            sampled_token_ids, requests, batch, discard_request_indices, num_discarded_requests
        )

    def _up_to_the_next_token(self, batch: Any, num_discarded: int) -> Any:
        """A copy of ``batch`` with these numbers of tokens."""
        unfinished = self.runner.discard_request_indices.np[:num_discarded]
        # The runner leaves out of sampling those whose length here is less than their tokens.
        lengths = self.runner.optimistic_seq_lens_cpu.numpy()
        num_tokens = batch.num_tokens_no_spec.copy()
        num_tokens[unfinished] = lengths[unfinished] + 1
        same = copy.copy(batch)
        same.num_tokens_no_spec = num_tokens
        return same
