# SPDX-License-Identifier: Apache-2.0
"""The order of a batch's rows in model runner V2: those that decode before chunks of prompts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mkv_ascend.adapters.patching import patch


@patch(
    name="rows that decode come first in model runner V2",
    target="vllm.v1.worker.gpu.model_runner:sort_batch_req_ids",
    reads=(
        "vllm.v1.attention.backends.utils:split_decodes_and_prefills",
        "vllm.v1.attention.backends.mamba_attn:"
        "BaseMambaAttentionMetadataBuilder._compute_common_metadata",
    ),
)
def sort_rows(
    original: Callable[..., list[str]],
    num_tokens_per_req: Mapping[str, int],
    draft_tokens: Mapping[str, list[int]],
    decode_query_len: int,
    **others: Any,
) -> list[str]:
    """Rows with drafts, then those without by their tokens: a row that decodes has one.

    A chunk of one token may stand before them. Builders take it for a row that decodes where it has
    a state, and where it has none, the scheduler lists its request behind all that run.
    """
    order = original(num_tokens_per_req, draft_tokens, decode_query_len, **others)
    with_drafts = [request for request in order if draft_tokens.get(request)]
    without = [request for request in num_tokens_per_req if not draft_tokens.get(request)]
    return with_drafts + sorted(without, key=num_tokens_per_req.__getitem__)
