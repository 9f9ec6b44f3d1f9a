# SPDX-License-Identifier: Apache-2.0
"""Attention in chunks (Llama 4), of target or draft.

vLLM's metadata builder for chunks makes metadata anew, without what vllm-ascend's reads.
"""

from __future__ import annotations

from collections.abc import Iterator

from mkv_ascend import host_versions
from mkv_ascend.checks.facts import ServeFacts
from mkv_ascend.checks.refusal import Refusal
from mkv_ascend.layout.kind import Kind

__all__ = ["chunks"]

WITHOUT_CHUNKS = "mimo_v2"
"""Model types that begin so name a size of chunks and have none; vLLM takes it out."""


def chunks(facts: ServeFacts) -> Iterator[Refusal]:
    """Models whose layers attend in chunks."""
    models = [facts.target]
    if facts.draft is not None and facts.draft.name != facts.target.name:
        models.append(facts.draft)
    for model in models:
        size = model.number("attention_chunk_size")
        if size and not model.model_type.startswith(WITHOUT_CHUNKS):
            yield Refusal(
                "chunks",
                f"layers of {model.name} attend in chunks of {size} tokens "
                f"({Kind.CHUNKED_LOCAL}), which no backend of {host_versions.vllm_ascend()} serves",
                "attention to all tokens, or to a sliding window",
                "choose a model without attention_chunk_size in its configuration",
            )
