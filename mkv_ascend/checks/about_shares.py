# SPDX-License-Identifier: Apache-2.0
"""Drafts that cannot be where ranks share the keys of each sequence (context parallelism)."""

from __future__ import annotations

from collections.abc import Iterator

from mkv_ascend.checks.facts import ServeFacts
from mkv_ascend.checks.refusal import Refusal

__all__ = ["CHECKS"]


def windows_in_shares(facts: ServeFacts) -> Iterator[Refusal]:
    """Layers with windows: attention of vllm-ascend sees all keys that a rank has there."""
    speculation, draft = facts.speculation, facts.draft
    if speculation is None or draft is None or not speculation.has_cache:
        return
    # Method dflash is refused with either.
    if facts.context_parallel > 1 and draft.has_windows and speculation.method != "dflash":
        yield Refusal(
            "draft-shares",
            f"layers of the draft {draft.name} have sliding windows, and context parallelism is "
            "on, where each rank attends to all keys that it has",
            "a draft whose layers attend to all tokens",
            "choose such a draft, or leave prefill_context_parallel_size and "
            "decode_context_parallel_size out",
        )


CHECKS = (windows_in_shares,)
