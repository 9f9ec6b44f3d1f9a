# SPDX-License-Identifier: Apache-2.0
"""What tests share where ranks share the keys of each sequence (decode context parallelism)."""

from __future__ import annotations

from typing import Any

from tests.support import engine
from tests.support.pairs import assert_drafts_are_the_drafts_own, assert_greedy_tokens_of_reference

RANKS = {"tensor_parallel_size": 2, "decode_context_parallel_size": 2}
ONE_KEY_HEAD = "llama_one_key_head"
LENGTHS = [5, 60, 127, 128, 130, 200, 256, 259]
"""Up to, at and beyond the end of a block, and of all ranks' blocks with one id."""
IN_GRAPHS: dict[str, Any] = {"graphs": "FULL_DECODE_ONLY", "capture_sizes": (4, 12, 24)}
"""For 1, 3 and 6 requests, so that batches are on, between and past them."""


def judged(case: engine.Scenario, result: engine.Result) -> None:
    """Every token is the target's, and every draft token the draft's own."""
    assert_greedy_tokens_of_reference(case, result)
    assert_drafts_are_the_drafts_own(case, result)
