# SPDX-License-Identifier: Apache-2.0
"""Steps that never reach the end of a block at which a recurrent state is kept.

vLLM 0.30.0 lets a chunk end inside such a block; vLLM 0.23.0 does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.config import VllmConfig


def refuse_short_steps(config: VllmConfig) -> None:
    """Check the schedule where states are kept at the ends of blocks.

    Raises:
        ValueError: a step, or a chunk of a prompt, takes fewer tokens than such a block.
    """
    if config.cache_config.mamba_cache_mode != "align":
        return
    block, scheduler = config.cache_config.block_size, config.scheduler_config
    kept = f"states are kept at the end of each block of {block} tokens"
    most = scheduler.max_num_scheduled_tokens or scheduler.max_num_batched_tokens
    if most < block:
        raise ValueError(
            f"{kept}, but a step takes at most {most}: a long prompt would wait for ever. Of "
            f"max_num_batched_tokens ({scheduler.max_num_batched_tokens}) drafts keep the rest; "
            f"raise it by {block - most} or more, or switch prefix caching off"
        )
    chunk = scheduler.long_prefill_token_threshold
    if 0 < chunk < block:
        # vLLM asserts the same without a word.
        raise ValueError(
            f"{kept}, but --long-prefill-token-threshold cuts prompts into chunks of {chunk}: none "
            f"would reach that end. Raise it to {block} or more, leave it out, or switch prefix "
            "caching off"
        )
