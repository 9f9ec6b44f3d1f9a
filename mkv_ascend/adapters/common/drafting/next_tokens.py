# SPDX-License-Identifier: Apache-2.0
"""The token after each chunk of a prompt, with which a proposal begins.

The target samples no token for a request that is still in prefill. vllm-ascend 0.23.0 (like vLLM
0.23.0) uses the last token of the whole prompt in place of the sampled one. A head on hidden states
keeps the key that it makes from it. So each chunk leaves one wrong key for the life of the request.

Tokens of a prompt that is given as embeddings are unknown, and vLLM's request raises an error where
it is asked for one: a prompt that is longer than a step would end the engine.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from mkv_ascend.adapters.common.attention.derived import stock

UNKNOWN = 0
"""Stands for the tokens of such a prompt; its request drafts nothing that is used yet."""


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


def requests_with_tokens(requests: Mapping[str, Any]) -> Mapping[str, Any]:
    """The runner's requests, where prompts that are given as embeddings have tokens, too."""
    if all(request.prompt_token_ids is not None for request in requests.values()):
        return requests
    return {name: _with_tokens(request) for name, request in requests.items()}


def _with_tokens(request: Any) -> Any:
    if request.prompt_token_ids is not None:
        return request
    same = copy.copy(request)
    same.prompt_token_ids = [UNKNOWN] * request.num_prompt_tokens
    return same


def prepare_next_token_ids_cpu(self: Any, sampled: Any, requests: Any, *of_batch: Any) -> Any:
    """As vLLM's, but prompts that are given as embeddings have tokens."""
    known = requests_with_tokens(requests)
    return stock(self).prepare_next_token_ids_cpu(sampled, known, *of_batch)


def prepare_next_token_ids_padded(self: Any, sampled: Any, requests: Any, *of_batch: Any) -> Any:
    """As vllm-ascend's, but prompts that are given as embeddings have tokens."""
    known = requests_with_tokens(requests)
    return stock(self).prepare_next_token_ids_padded(sampled, known, *of_batch)
