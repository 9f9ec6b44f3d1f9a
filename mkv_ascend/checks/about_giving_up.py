# SPDX-License-Identifier: Apache-2.0
"""Drafts that ``drafting.give_up_below`` cannot stop."""

from __future__ import annotations

from collections.abc import Iterator

from mkv_ascend.checks.about_draft_options import host_drafts
from mkv_ascend.checks.facts import ServeFacts
from mkv_ascend.checks.refusal import Refusal

__all__ = ["CHECKS"]


def giving_up(facts: ServeFacts) -> Iterator[Refusal]:
    """``drafting.give_up_below`` where nothing of ours drafts, or ranks draft together."""
    below = facts.options.drafting.give_up_below
    reason = _why_not(facts)
    if below is not None and reason is not None:
        yield Refusal(
            "give-up",
            f"drafting.give_up_below is {below}, and {reason}",
            "an end of drafting for draft models and heads with a KV cache, by one engine without "
            "pipeline stages",
            "leave drafting.give_up_below out",
        )


def _why_not(facts: ServeFacts) -> str | None:
    if facts.speculation is None or not facts.speculation.has_cache:
        return "there is no draft with a KV cache"
    if host_drafts(facts):
        return "vllm-ascend's own proposal drafts for this pair"
    if facts.whole("data_parallel_size", 1) > 1:
        return "--data-parallel-size is more than 1: ranks draft together, and each judges alone"
    if facts.whole("pipeline_parallel_size", 1) > 1:
        return "--pipeline-parallel-size is more than 1"
    return None


CHECKS = (giving_up,)
