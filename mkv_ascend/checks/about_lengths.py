# SPDX-License-Identifier: Apache-2.0
"""Lengths that vLLM does not take: of the longest request, and of a step without chunks."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from mkv_ascend.checks.facts import ServeFacts
from mkv_ascend.checks.refusal import Refusal

__all__ = ["CHECKS"]

FITTED = -1
"""Of ``--max-model-len``: as long as memory allows."""
KEEPING_POSITIONS = frozenset({"llama3", "longrope", "su"})
"""Scalings of rope behind which vLLM takes the positions of config.json as they are."""


def length_by_itself(facts: ServeFacts) -> Iterator[Refusal]:
    """A longest request of no tokens, or of fewer."""
    asked = facts.engine.get("max_model_len")
    if type(asked) is int and asked < 1 and asked != FITTED:
        yield Refusal(
            "number",
            f"--max-model-len is {asked}",
            "a whole number from 1 on, or auto",
            "correct it, or leave --max-model-len out",
        )


def length(facts: ServeFacts) -> Iterator[Refusal]:
    """More tokens than the model has positions.

    Some config.json say beside them, as ``model_max_length``, how long a request may be all the
    same; vLLM takes requests up to that length.
    """
    most = facts.target.number("max_position_embeddings")
    asked = facts.whole("max_model_len", FITTED)
    said = facts.target.values.get("model_max_length")
    if most is not None and type(said) is int:
        most = max(most, said)
    allowed = os.environ.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "0").lower() in ("1", "true")
    if most is None or asked <= most or allowed or _stretches_positions(facts.target.text):
        return
    yield Refusal(
        "max-model-len",
        f"--max-model-len is {asked}, and {facts.target.name} has positions for {most} tokens",
        f"1 to {most}",
        f"write --max-model-len {most} or less",
    )


def _stretches_positions(text: Mapping[str, Any]) -> bool:
    """Whether rope makes other lengths of the positions; what is not known is taken for that.

    transformers 5 writes ``rope_parameters`` for every model, of most with ``rope_type`` default.
    """
    for name in ("rope_scaling", "rope_parameters"):
        rope = text.get(name)
        if not rope:
            continue
        if not isinstance(rope, Mapping):
            return True
        # Of models whose kinds of layers turn differently: one for each kind.
        parts = list(rope.values())
        nested = parts and all(part is None or isinstance(part, Mapping) for part in parts)
        if any(map(_stretches, filter(None, parts if nested else [rope]))):
            return True
    return False


def _stretches(rope: Mapping[str, Any]) -> bool:
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind in KEEPING_POSITIONS:
        return False
    return kind != "default" or rope.get("factor") is not None


def whole_prompts(facts: ServeFacts) -> Iterator[Refusal]:
    """Prompts that are not computed in chunks, and steps that cannot hold the longest one."""
    tokens, longest = facts.whole("max_num_batched_tokens", 0), facts.whole("max_model_len", 0)
    if facts.engine.get("enable_chunked_prefill") is not False or not 0 < tokens < longest:
        return
    yield Refusal(
        "step-size",
        f"--no-enable-chunked-prefill is given, --max-num-batched-tokens is {tokens}, and "
        f"--max-model-len {longest}: a step could not hold the longest prompt",
        f"{longest} tokens or more, or prompts in chunks",
        "leave --no-enable-chunked-prefill out, or raise --max-num-batched-tokens",
    )


CHECKS = (length_by_itself, length, whole_prompts)
