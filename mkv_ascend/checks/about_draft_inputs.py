# SPDX-License-Identifier: Apache-2.0
"""Drafts whose tokens vLLM's proposers cannot lay out beside the target's.

vLLM 0.23.0, ``v1/spec_decode/llm_base_proposer.py``: these are raised in the worker, for draft
models and with ``parallel_drafting``, which both need more rows than the target has tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mkv_ascend import host_versions
from mkv_ascend.checks.facts import BLOCKS, ServeFacts
from mkv_ascend.checks.model import ModelFacts
from mkv_ascend.checks.refusal import Refusal

__all__ = ["CHECKS", "TEXT_ONLY", "has_several_positions", "takes_images"]

READ_STATES = BLOCKS | {"eagle", "eagle3", "mtp"}
"""Methods whose drafts read hidden states of the target (``SpeculativeConfig.use_eagle``)."""


def _with_more_rows(facts: ServeFacts) -> Mapping[str, Any] | None:
    """The options of a draft that needs them; None for another one."""
    speculation = facts.speculation
    if speculation is None or not speculation.has_cache or facts.draft is None:
        return None
    more = speculation.method == "draft_model" or speculation.options.get("parallel_drafting")
    return speculation.options if more else None


def has_several_positions(model: ModelFacts) -> bool:
    """Whether a token has a position in time, rows and columns (M-RoPE)."""
    parts = [part.get(name) for part in (model.text, model.values) for name in ROPE]
    return any(isinstance(part, Mapping) and "mrope_section" in part for part in parts)


def takes_images(facts: ServeFacts) -> bool:
    """Whether prompts may hold images or sound, whose tokens have positions of their own."""
    if facts.engine.get(TEXT_ONLY):
        return False
    inputs = any(name in facts.target.values for name in ("vision_config", "audio_config"))
    return inputs or has_several_positions(facts.target)


TEXT_ONLY = "language_model_only"
"""vLLM's option that leaves the parts of a model for images and sound out: all that is left are
prompts of text, and of a token of text all three positions are one."""

ROPE = ("rope_parameters", "rope_scaling")
"""Where config.json files have the numbers of rotary embeddings, of transformers 5 and before."""


def positions(facts: ServeFacts) -> Iterator[Refusal]:
    """A draft with three positions for each token."""
    draft = facts.draft
    if _with_more_rows(facts) is None or draft is None or not has_several_positions(draft):
        return
    yield Refusal(
        "draft-rope",
        f"the draft {draft.name} ({draft.model_type}) has M-RoPE, three positions for each token, "
        f"of which {host_versions.vllm()} gives a draft one",
        "drafts without mrope_section in their config.json, heads, the target's own predictor "
        "(method mtp), ngram",
        "choose a text-only model of the family as the draft, or one of these methods",
    )


def padded_batch(facts: ServeFacts) -> Iterator[Refusal]:
    """``disable_padded_drafter_batch``, where rows are made on the device."""
    options, draft = _with_more_rows(facts), facts.draft
    # The check of recurrent drafts says it of those.
    if options is None or draft is None or draft.recurrent is not None:
        return
    if options.get("disable_padded_drafter_batch"):
        yield Refusal(
            "draft-batch",
            f"disable_padded_drafter_batch is set, and the draft {draft.name} takes rejected "
            f"tokens as padding: {host_versions.vllm()} has no other way for draft models",
            "the option for heads (eagle, eagle3, mtp)",
            "leave disable_padded_drafter_batch out",
        )


def states_of_prompts(facts: ServeFacts) -> Iterator[Refusal]:
    """``--kv-sharing-fast-prefill`` with a draft that reads hidden states of prompts.

    vLLM refuses it while it makes its configuration (``VllmConfig.__post_init__``), whatever the
    target is: its last layers are skipped for tokens of prompts, so their states are not right.
    """
    speculation = facts.speculation
    if speculation is None or speculation.method not in READ_STATES:
        return
    if facts.engine.get("kv_sharing_fast_prefill"):
        yield Refusal(
            "fast-prefill",
            "--kv-sharing-fast-prefill is given, and a draft of method "
            f"{speculation.method} reads hidden states of prompts, which vLLM does not compute "
            "then",
            "the option beside a draft model (draft_model) or ngram",
            "leave --kv-sharing-fast-prefill out",
        )


CHECKS = (positions, padded_batch, states_of_prompts)
