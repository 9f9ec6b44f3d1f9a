# SPDX-License-Identifier: Apache-2.0
"""What is checked on vllm-ascend 0.30.0rc2 alone: rotations of heads, steps beside kept states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vllm.model_executor.models.registry import ModelRegistry
from vllm.triton_utils import HAS_TRITON

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheSpec


# Heads that vllm-ascend 0.30.0rc2 rotates by a kernel that it calls wrongly.

LLAMAS_HEADS = frozenset(
    {"EagleLlamaForCausalLM", "Eagle3LlamaForCausalLM", "AscendEagle3LlamaForCausalLM"}
)
"""Classes of vLLM's, and the one that vllm-ascend's plugin registers in the second one's place;
checkpoints name them in a dozen ways."""


def why_not_served(config: VllmConfig) -> str | None:
    """Of a head with Llama's layers, which rotate by vllm-ascend's own class; None: it is served.

    Mended on model runner V2 (v2/patches/speculators.py).
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


# Recurrent states at the ends of blocks, and steps that would never reach such an end.


def refuse_steps_that_wait(config: VllmConfig, specs: Sequence[KVCacheSpec]) -> None:
    """Check the schedule where states are kept at the ends of blocks.

    vLLM 0.30.0's scheduler takes a chunk back to the end of a block if a step may take a whole
    block. It does not count what it leaves for each request's drafts.

    Args:
        config: vLLM's; its block size is still the one that was asked for.
        specs: of all KV groups; vLLM takes the least block of those that hits read.

    Raises:
        ValueError: no step would take a token of a prompt longer than a block.
    """
    from vllm.v1.kv_cache_interface import MambaSpec, iter_layer_specs

    if config.cache_config.mamba_cache_mode != "align" or config.speculative_config is None:
        return
    of_layers = (one for spec in specs for one in iter_layer_specs(spec))
    if not any(isinstance(spec, MambaSpec) for spec in of_layers):
        return  # The mode was asked for in vain.
    hit = [spec.block_size for spec in specs if spec.prefix_cacheable]
    block, scheduler = min(hit, default=0), config.scheduler_config
    step = scheduler.max_num_scheduled_tokens or scheduler.max_num_batched_tokens
    longest = min(step, scheduler.long_prefill_token_threshold or step)
    kept_back = config.speculative_config.max_num_new_slots_for_drafting
    short_of = block - min(longest, scheduler.max_num_batched_tokens - kept_back)
    if block <= longest and short_of > 0:
        raise ValueError(
            f"states are kept at the end of each block of {block} tokens, but of "
            f"max_num_batched_tokens ({scheduler.max_num_batched_tokens}) drafts keep {kept_back}: "
            f"a long prompt would wait for ever. Raise it by {short_of} or more, or switch prefix "
            "caching off"
        )
