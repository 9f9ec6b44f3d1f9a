# SPDX-License-Identifier: Apache-2.0
"""Multi-modal models: where the numbers of the language model are, and how its layers are named.

Only the language model keeps a cache. vLLM names its layers as the class of the whole model says;
the classes of ``DECODERS`` are those of vllm/model_executor/models that put a language model of a
family of ``families`` inside, tests/emulated/layout/test_planner.py compares.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["DECODERS", "OF_LANGUAGE_ALONE", "decoder_of"]

OF_LANGUAGE_ALONE = "model.layers"

DECODERS: Mapping[str, str] = {
    **dict.fromkeys(
        (
            "Cohere2VisionForConditionalGeneration",
            "Gemma3ForConditionalGeneration",
            "Gemma4ForConditionalGeneration",
            "InternVLForConditionalGeneration",
            "KimiK25ForConditionalGeneration",
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
        f"language_model.{OF_LANGUAGE_ALONE}",
    ),
    "AyaVisionForConditionalGeneration": f"model.{OF_LANGUAGE_ALONE}",
    "Lfm2VlForConditionalGeneration": f"language.{OF_LANGUAGE_ALONE}",
    **dict.fromkeys(
        ("Idefics3ForConditionalGeneration", "SmolVLMForConditionalGeneration"),
        "model.text_model.layers",
    ),
}
"""Class of a multi-modal model -> what stands before the number in its decoder layers' names."""


def decoder_of(config: Mapping[str, Any]) -> str | None:
    """The same, ``model.layers`` for a model of language alone; None for an unknown class."""
    names = config.get("architectures") or ()
    found = next((DECODERS[name] for name in names if name in DECODERS), None)
    if found is not None:
        return found
    is_whole = "text_config" not in config and "vision_config" not in config
    return OF_LANGUAGE_ALONE if is_whole else None
