# SPDX-License-Identifier: Apache-2.0
"""Families of models that vLLM 0.30.0 has and vllm-ascend 0.30.0rc2 does not serve right."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm.model_executor.models.registry import ModelRegistry
from vllm.triton_utils import HAS_TRITON

from mkv_ascend.adapters.vllm_ascend_0_30.unserved_families import FAMILIES
from mkv_ascend.checks.unserved_family import unserved

if TYPE_CHECKING:
    from vllm.config import ModelConfig, VllmConfig

LLAMAS_HEADS = frozenset(
    {"EagleLlamaForCausalLM", "Eagle3LlamaForCausalLM", "AscendEagle3LlamaForCausalLM"}
)
"""Classes of vLLM's, and the one that vllm-ascend's plugin registers in the second one's place;
checkpoints name them in a dozen ways."""


def why_not_served(config: VllmConfig) -> str | None:
    """What is wrong with the target or the draft model; None: nothing."""
    speculative = config.speculative_config
    draft = None if speculative is None else speculative.draft_model_config
    reasons = [_reason_of(config.model_config)]
    if draft is not None:
        reasons.append(_reason_of(draft, drafts=speculative.method == "draft_model"))
    # Mended on model runner V2 (v2/patches/axes_in_turns.py).
    if draft is not None and not config.use_v2_model_runner:
        reasons.append(_axes_in_turns(draft))
    return next(filter(None, reasons), None)


def _axes_in_turns(head: ModelConfig) -> str | None:
    """Of a head with Llama's layers, which rotate by vllm-ascend's own class."""
    registered = [ModelRegistry.models.get(name) for name in head.architectures or ()]
    classes = {getattr(model, "class_name", None) for model in registered}
    if not (HAS_TRITON and classes & LLAMAS_HEADS):
        return None
    rope = getattr(head.hf_text_config, "rope_parameters", None) or {}
    if not rope.get("mrope_interleaved"):
        return None
    return (
        f"{head.model} rotates by three axes in turns (mrope_interleaved), for which vllm-ascend "
        "0.30.0rc2 calls a kernel of Triton without an argument that vLLM 0.30.0 asks for. "
        "Possible: model runner V2 (VLLM_USE_V2_MODEL_RUNNER=1), or a head without "
        "mrope_interleaved"
    )


def _reason_of(model: ModelConfig, *, drafts: bool = False) -> str | None:
    dtype = str(model.dtype).removeprefix("torch.")
    found = unserved(FAMILIES, model.architectures or (), dtype, drafts=drafts)
    if found is None:
        return None
    return f"{found.reason(model.model, dtype)}. Possible: {found.possible}"
