# SPDX-License-Identifier: Apache-2.0
"""Tokens that fill a batch up, so that ranks which share its tokens out have as many each.

Attention writes no output for tokens of no request: that memory holds whatever was there. Ranks
that share experts multiply such rows by 0 when they add up what experts said of others, and NaN
stays NaN. So a request of padding stands for these tokens. vllm-ascend adds one, too; 0.30.0rc2
asks whether ranks share tokens out where no configuration is set, so that the answer is always no.
"""

from __future__ import annotations

from typing import Any


def cover_padding(runner: Any, asked: dict[str, Any]) -> None:
    """Add a request for tokens of padding that none of the batch has.

    Args:
        runner: vllm-ascend's; its starts of queries are changed.
        asked: arguments of its ``_build_attention_metadata``; changed if there are such tokens.
    """
    if asked.get("for_cudagraph_capture") or runner.model_config.use_mla:
        return
    from vllm_ascend.utils import enable_sp

    if not enable_sp(runner.vllm_config):
        return
    count = asked["num_reqs"]
    tokens = asked.get("num_tokens_padded") or asked["num_tokens"]
    requests = asked.get("num_reqs_padded") or count
    starts = runner.query_start_loc
    if starts.np[requests] < tokens:
        asked["num_reqs_padded"] = runner._pad_query_start_loc_for_fia(
            starts, tokens, requests, count
        )
