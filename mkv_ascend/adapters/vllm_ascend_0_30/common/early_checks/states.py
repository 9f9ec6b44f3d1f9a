# SPDX-License-Identifier: Apache-2.0
"""Recurrent states at the ends of blocks, and steps that would never reach such an end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheSpec


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
