# SPDX-License-Identifier: Apache-2.0
"""Drafts that ``drafting.window`` cannot give a window, and options that keep its blocks."""

from __future__ import annotations

from collections.abc import Iterator

from mkv_ascend.attention.draft_window import WINDOWED_KINDS, window_of_layer
from mkv_ascend.checks.facts import ServeFacts
from mkv_ascend.checks.refusal import Refusal

__all__ = ["CHECKS"]

POSSIBLE = "a window for drafts of dense layers: draft models, eagle and eagle3 heads, mtp"


def window_of_draft(facts: ServeFacts) -> Iterator[Refusal]:
    """``drafting.window`` where no layer of the draft can have one, or nothing would come of it."""
    asked = facts.options.drafting.window
    if asked is None:
        return
    reason = _why_there_is_none(facts)
    if reason is None and window_of_layer(None, asked, facts.max_model_len or None) is not None:
        reason = _why_it_cannot_be(facts)
    if reason is not None:
        yield Refusal(
            "draft-window",
            f"drafting.window is {asked}, and {reason[0]}",
            POSSIBLE,
            f"leave {reason[1]} out",
        )


def _why_there_is_none(facts: ServeFacts) -> tuple[str, str] | None:
    if facts.speculation is None or not facts.speculation.has_cache:
        return "there is no draft with a KV cache", "drafting.window"
    return None


def _why_it_cannot_be(facts: ServeFacts) -> tuple[str, str] | None:
    """The reason, and what to leave out; None where the draft can have a window."""
    speculation, draft = facts.speculation, facts.draft
    assert speculation is not None
    method, option = speculation.method, "drafting.window"
    if speculation.drafts_blocks:
        return (
            f"layers of method {method} have the windows of their own config.json alone",
            option,
        )
    if draft is not None and (draft.kind not in WINDOWED_KINDS or draft.is_compressed):
        return (
            f"layers of the draft {draft.name} are of MLA, whose operators have no window",
            option,
        )
    if draft is not None and draft.recurrent is not None and method != "mtp":
        # Its states hold all tokens whatever its few attention layers see.
        return f"the draft {draft.name} has recurrent layers, which keep no keys", option
    if facts.context_parallel > 1:
        return "context parallelism is on, where blocks behind a window are kept", option
    if facts.engine.get("disable_hybrid_kv_cache_manager"):
        return (
            "--disable-hybrid-kv-cache-manager keeps the blocks behind a window",
            "--disable-hybrid-kv-cache-manager",
        )
    return None


CHECKS = (window_of_draft,)
