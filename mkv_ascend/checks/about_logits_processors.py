# SPDX-License-Identifier: Apache-2.0
"""Logits processors of the user's own (``--logits-processors``), which vLLM calls without drafts.

vLLM refuses them itself: beside any speculation on model runner V1, but only in the worker, when it
makes its batches; on V2 while it makes its configuration, with a draft or without.
"""

from __future__ import annotations

from collections.abc import Iterator

from mkv_ascend import host_versions
from mkv_ascend.checks.facts import ServeFacts
from mkv_ascend.checks.refusal import Refusal

__all__ = ["beside_drafts", "on_v2"]


def beside_drafts(facts: ServeFacts) -> Iterator[Refusal]:
    """On model runner V1: any speculation, whether a model drafts or not."""
    if facts.runner != "v1" or facts.speculation is None or not _are_asked_for(facts):
        return
    yield Refusal(
        "logits-processors",
        "--logits-processors is given beside --speculative-config, and "
        f"{host_versions.vllm()} calls none of them for tokens that it verifies",
        "one of the two; beside drafts what requests ask for themselves (bad_words, "
        "allowed_token_ids, penalties, structured_outputs)",
        "leave --logits-processors out, or --speculative-config",
    )


def on_v2(facts: ServeFacts) -> Iterator[Refusal]:
    """On model runner V2: always."""
    if facts.runner != "v2" or not _are_asked_for(facts):
        return
    yield Refusal(
        "logits-processors",
        f"--logits-processors is given, and model runner V2 of {host_versions.vllm()} calls none",
        "model runner V1 without --speculative-config",
        "leave --logits-processors out, or set VLLM_USE_V2_MODEL_RUNNER=0 and leave "
        "--speculative-config out",
    )


def _are_asked_for(facts: ServeFacts) -> bool:
    return bool(facts.engine.get("logits_processors"))
