# SPDX-License-Identifier: Apache-2.0
"""Multi-modal models: where the numbers of the language model are, and how its layers are named.

Only the language model keeps a cache. vLLM names its layers as the class of the whole model says;
the classes of ``PREFIXES`` are those of vllm/model_executor/models that put a language model of a
family of ``model_config`` inside, tests/emulated/layout/test_planner.py compares.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["PREFIXES", "prefix_of_layers"]

LANGUAGE_MODEL = "language_model."

PREFIXES: Mapping[str, str] = dict.fromkeys(
    (
        "Gemma3ForConditionalGeneration",
        "InternVLForConditionalGeneration",
        "KimiVLForConditionalGeneration",
        "LlavaForConditionalGeneration",
        "LlavaNextForConditionalGeneration",
        "LlavaOnevisionForConditionalGeneration",
        "Mistral3ForConditionalGeneration",
        "Qwen2VLForConditionalGeneration",
        "Qwen2_5_VLForConditionalGeneration",
        "Qwen3VLForConditionalGeneration",
        "Qwen3VLMoeForConditionalGeneration",
        "Qwen3_5ForConditionalGeneration",
        "Qwen3_5MoeForConditionalGeneration",
    ),
    LANGUAGE_MODEL,
)
"""Class of a multi-modal model -> what stands before ``model.layers`` in its layers' names."""


def prefix_of_layers(config: Mapping[str, Any]) -> str | None:
    """The prefix, empty for a model of language alone; None for a class that is not known here."""
    names = config.get("architectures") or ()
    found = next((PREFIXES[name] for name in names if name in PREFIXES), None)
    if found is not None:
        return found
    is_whole = "text_config" not in config and "vision_config" not in config
    return "" if is_whole else None
