# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of drafts in the format of the library speculators, read as vLLM reads them.

Such a config.json keeps the numbers of the draft's layers in ``transformer_layer_config``, and
names method, K and target (its verifier). So ``vllm serve DRAFT`` serves the target with the draft.
The fields are those of vLLM's ``transformers_utils/configs/speculators``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["FORMAT", "as_vllm_reads", "command_of"]

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


def command_of(
    values: Mapping[str, Any], name: str, given: Any
) -> tuple[str, dict[str, Any]] | None:
    """The target and the speculation that ``vllm serve DRAFT`` asks for; None for other models.

    Args:
        values: the config.json.
        name: of the draft.
        given: ``--speculative-config``, which may change K and the like.
    """
    found = values.get(FORMAT)
    if not isinstance(found, Mapping):
        return None
    verifier, methods = found.get("verifier"), found.get("proposal_methods")
    target = verifier.get("name_or_path") if isinstance(verifier, Mapping) else None
    if not isinstance(target, str):
        return None
    first = methods[0] if isinstance(methods, list) and methods else None
    method = values.get("speculators_model_type")
    speculation: dict[str, Any] = {
        "num_speculative_tokens": first.get("speculative_tokens")
        if isinstance(first, Mapping)
        else None,
        **({"parallel_drafting": True} if method == "peagle" else {}),
        **(given if isinstance(given, Mapping) else {}),
        "method": "eagle3" if method == "peagle" else method,
        "model": name,
    }
    return target, speculation
