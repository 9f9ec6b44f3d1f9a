# SPDX-License-Identifier: Apache-2.0
"""The target's verify steps in full graphs, whatever proposes the drafts.

A verify step has K + 1 tokens per request. vllm-ascend 0.23.0 knows that of the methods eagle,
eagle3 and mtp only, and of the others (draft_model, ngram, suffix) takes such a step for a decode
with one token per request: when it captures, and in MLA when it updates a captured launch.
"""

from __future__ import annotations

from typing import Any

from vllm_ascend.attention.attention_v1 import AscendAttentionState


class SeveralTokensPerRequest:
    """A speculative configuration whose method is one of those that vllm-ascend looks for."""

    def __init__(self, config: Any) -> None:
        self._config = config

    def __getattr__(self, name: str) -> Any:
        return getattr(self._config, name)

    def use_eagle(self) -> bool:
        """Asked where lengths of a verify step are made: whether it has K + 1 tokens each."""
        return True


def for_updates(config: Any) -> Any:
    """The speculative configuration as updates of captured launches shall see it."""
    return None if config is None else SeveralTokensPerRequest(config)


def state_of(state: AscendAttentionState, max_query_len: int) -> AscendAttentionState:
    """The state of a step with so many tokens per request: several are a chunk, not a decode."""
    if state is AscendAttentionState.DecodeOnly and max_query_len > 1:
        return AscendAttentionState.ChunkedPrefill
    return state
