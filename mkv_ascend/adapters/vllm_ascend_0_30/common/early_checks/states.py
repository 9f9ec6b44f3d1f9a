# SPDX-License-Identifier: Apache-2.0
"""Recurrent states: what this adapter does not serve right yet, most of it beside drafts.

Gated delta nets, Kimi delta attention, Mamba2 layers and short convolutions are served as targets
with drafts of any method; tests judge their tokens. Of others no test knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mkv_ascend.checks.about_kept_states import of_all_blocks

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheSpec

INSTEAD = "Possible: no speculation, or vllm-ascend 0.23.0 with vLLM 0.23.0"
OF_KINDS = (
    "linear_num_value_heads",
    "linear_attn_config",
    "mamba_chunk_size",
    "chunk_size",
    "conv_L_cache",
)
"""Of configurations with gated delta nets, with Kimi delta attention, with Mamba2 layers (two
names), and with short convolutions."""


def why_not_served(config: VllmConfig) -> str | None:
    """What is asked for beside states that this adapter cannot take back; None: nothing."""
    speculative, model = config.speculative_config, config.model_config
    states = model.is_hybrid or model.is_attention_free
    if states and config.cache_config.mamba_cache_mode == "all":
        return str(of_all_blocks())
    if speculative is None:
        return None
    asked = f"{speculative.method} drafts are asked for beside {model.model}, which keeps"
    if model.is_hybrid and not any(hasattr(model.hf_text_config, name) for name in OF_KINDS):
        return (
            f"{asked} recurrent states other than gated delta nets, KDA, Mamba2 and "
            "short convolutions: mkv_ascend has not been tested to take these back on vllm-ascend "
            f"0.30.0rc2. {INSTEAD}"
        )
    return None


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
