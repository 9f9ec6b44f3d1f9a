# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of drafts in the format of the library speculators, read as vLLM reads them.

Such a config.json keeps the numbers of the draft's layers in ``transformer_layer_config``. The
fields are those of vLLM's ``transformers_utils/configs/speculators``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["FORMAT", "as_vllm_reads"]

FORMAT = "speculators_config"
"""What a config.json in this format has, and no other."""
LAYERS = "transformer_layer_config"
CLASSES = {
    "eagle3": "Eagle3LlamaForCausalLM",
    "peagle": "Eagle3LlamaForCausalLM",
    "dflash": "DFlashDraftModel",
    "dflash2": "DFlash2DraftModel",
    "dspark": "Qwen3DSparkModel",
}
"""``speculators_model_type`` -> vLLM's class of the draft."""


def as_vllm_reads(values: dict[str, Any]) -> dict[str, Any]:
    """A config.json as vLLM has it; the same object where it is not in this format."""
    layers = values.get(LAYERS)
    if FORMAT not in values or not isinstance(layers, Mapping):
        return values
    kind = values.get("speculators_model_type")
    own = {name: value for name, value in values.items() if name not in (LAYERS, "auto_map")}
    read = {**own, **layers}
    if kind in CLASSES:
        read["architectures"] = [CLASSES[kind]]
    if kind in ("dflash", "dflash2"):
        causal = not values.get("sliding_window_non_causal", True)
        read["dflash_config"] = {"mask_token_id": values.get("mask_token_id"), "causal": causal}
    return read
