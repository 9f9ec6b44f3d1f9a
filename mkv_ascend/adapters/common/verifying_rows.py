# SPDX-License-Identifier: Apache-2.0
"""Rows of a batch whose recurrent states stand where a verification of drafts left them.

While ``K`` drafts are verified, a gated delta net writes a state after each of ``1 + K`` tokens,
into as many columns of the request's block table. The next step goes on from the column of the last
accepted one. vllm-ascend names only rows with drafts to its builder.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def verifying_rows(
    drafts: np.ndarray, accepted: np.ndarray, computed: np.ndarray, prompts: np.ndarray
) -> np.ndarray:
    """Number of drafts of each row that may go on from a column past 0; -1 for other rows.

    All are int ``[rows]``: ``drafts`` to verify (0 for none), tokens ``accepted`` by the last step
    with its own token, tokens ``computed``, and tokens of ``prompts``.
    """
    decoding = ~in_prompts(computed, prompts)
    found: np.ndarray = np.where(decoding & ((drafts > 0) | (accepted > 1)), drafts, -1)
    return found


def in_prompts(computed: np.ndarray, prompts: np.ndarray) -> np.ndarray:
    """Whether each row is a chunk of a prompt, from tokens computed and tokens of the prompt."""
    found: np.ndarray = computed < prompts
    return found


def name_rows(runner: Any, asked: dict[str, Any], least: int = 0) -> None:
    """Name rows that verified drafts but have none now, beside those that have.

    Args:
        runner: vllm-ascend's; its number of drafts of each row is changed.
        asked: arguments of its ``_build_attention_metadata``; changed if there are more rows.
        least: what a row without drafts is said to have.
    """
    if not (runner.speculative_config and runner.model_config.is_hybrid):
        return
    if asked.get("for_cudagraph_capture") or asked.get("num_scheduled_tokens") is None:
        return
    count, batch = asked["num_reqs"], runner.input_batch
    if not asked.get("use_spec_decode"):
        runner.num_decode_draft_tokens.np.fill(-1)
    drafts = runner.num_decode_draft_tokens.np[:count]
    found = verifying_rows(
        np.maximum(drafts, 0),
        runner.num_accepted_tokens.np[:count],
        batch.num_computed_tokens_cpu[:count],
        batch.num_prompt_tokens[:count],
    )
    drafts[:] = np.maximum(drafts, np.where(found < 0, -1, np.maximum(found, least)))
    asked["use_spec_decode"] = bool((drafts >= 0).any())
