# SPDX-License-Identifier: Apache-2.0
"""Kimi delta attention (KDA): on which host, and in which form, its state can be taken back."""

from __future__ import annotations

from mkv_ascend.checks.facts import ServeFacts
from mkv_ascend.checks.model import DELTA_ATTENTION, ModelFacts

__all__ = ["is_kept_for_drafts", "is_taken_back"]


def is_kept_for_drafts(facts: ServeFacts) -> bool:
    """Whether the host keeps a state for each draft token."""
    return facts.rules is not None and facts.rules.delta_attention_drafts


def is_taken_back(facts: ServeFacts, model: ModelFacts) -> bool:
    """Whether ``model`` has such layers, in the form that this host loads and takes back.

    vLLM 0.30.0 asserts an output gate of full rank, as Kimi-K3's (``models/kimi_k3``).
    """
    sizes = model.text.get("linear_attn_config")
    return (
        model.recurrent == DELTA_ATTENTION
        and is_kept_for_drafts(facts)
        and isinstance(sizes, dict)
        and bool(sizes.get("use_full_rank_gate"))
    )
