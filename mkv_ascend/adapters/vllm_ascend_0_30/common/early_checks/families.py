# SPDX-License-Identifier: Apache-2.0
"""Heads that vllm-ascend 0.30.0rc2 rotates by a kernel that it calls wrongly."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm.model_executor.models.registry import ModelRegistry
from vllm.triton_utils import HAS_TRITON

if TYPE_CHECKING:
    from vllm.config import VllmConfig

LLAMAS_HEADS = frozenset(
    {"EagleLlamaForCausalLM", "Eagle3LlamaForCausalLM", "AscendEagle3LlamaForCausalLM"}
)
"""Classes of vLLM's, and the one that vllm-ascend's plugin registers in the second one's place;
checkpoints name them in a dozen ways."""


def why_not_served(config: VllmConfig) -> str | None:
    """Of a head with Llama's layers, which rotate by vllm-ascend's own class; None: it is served.

    Mended on model runner V2 (v2/patches/axes_in_turns.py).
    """
    speculative = config.speculative_config
    head = None if speculative is None else speculative.draft_model_config
    if head is None or config.use_v2_model_runner:
        return None
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
