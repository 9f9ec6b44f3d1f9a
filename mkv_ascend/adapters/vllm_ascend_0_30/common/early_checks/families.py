# SPDX-License-Identifier: Apache-2.0
"""Families of models that vLLM 0.30.0 has and vllm-ascend 0.30.0rc2 does not serve right."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from vllm.model_executor.models.registry import ModelRegistry
from vllm.triton_utils import HAS_TRITON

if TYPE_CHECKING:
    from vllm.config import ModelConfig, VllmConfig

OF_LONGCAT = frozenset({"LongcatFlashForCausalLM", "LongcatFlashNgramForCausalLM"})
OPENPANGUS_MTP = "OpenPanguMTPModel"
LLAMAS_HEADS = frozenset({"EagleLlamaForCausalLM", "Eagle3LlamaForCausalLM"})
"""Classes of vLLM's; checkpoints name them in a dozen ways."""
OF_STEP = frozenset({"Step3p5ForCausalLM", "Step3p7ForConditionalGeneration"})


def why_not_served(config: VllmConfig) -> str | None:
    """What is wrong with the target or the draft model; None: nothing."""
    speculative = config.speculative_config
    draft = None if speculative is None else speculative.draft_model_config
    models = [model for model in (config.model_config, draft) if model is not None]
    reasons = [_reason_of(model) for model in models]
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


def _reason_of(model: ModelConfig) -> str | None:
    names = set(model.architectures or ())
    if names & OF_LONGCAT:
        return (
            f"{model.model} is a LongCat-Flash: its layers have two attentions each, whose names "
            "vllm-ascend 0.30.0rc2 does not read, and experts without matrices, which its router "
            "takes for others. Possible: vllm-ascend 0.23.0 with vLLM 0.23.0"
        )
    if OPENPANGUS_MTP in names:
        return (
            f"{model.model} is openPangu's drafting layer: vLLM 0.30.0 derives its class from "
            "DeepSeek's, which asks the layer's block for what openPangu's does not have. "
            "Possible: a draft model, lookup, or vllm-ascend 0.23.0 with vLLM 0.23.0"
        )
    # worker/patch_step3p5.py puts a fused kernel in the place of vLLM's attention, in any dtype.
    if names & OF_STEP and model.dtype != torch.bfloat16:
        return (
            f"{model.model} is a Step-3.5 in {model.dtype}: the fused kernel that vllm-ascend "
            "0.30.0rc2 calls for its queries and keys holds them in bfloat16, and takes no other "
            "dtype. Possible: --dtype bfloat16, or vllm-ascend 0.23.0 with vLLM 0.23.0"
        )
    return None
