# SPDX-License-Identifier: Apache-2.0
"""What layers with recurrent states cannot do, refused when the model is loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mkv_ascend import host_versions

if TYPE_CHECKING:
    from vllm.config import VllmConfig


def refuse(config: VllmConfig, target_layers: dict[str, Any]) -> None:
    """Check the layers of the target, by name, and the schedule.

    Raises:
        NotImplementedError: drafts are asked for beside states that cannot be taken back.
        ValueError: a step takes fewer tokens than the block at whose end a state is kept.
    """
    from vllm.model_executor.layers.mamba.gdn.kimi_gdn_linear_attn import (
        KimiGatedDeltaNetAttention,
    )

    if config.speculative_config is not None:
        for name, layer in target_layers.items():
            if isinstance(layer, KimiGatedDeltaNetAttention):
                raise NotImplementedError(
                    f"drafts are asked for, but the target's layer {name} is a "
                    "KimiGatedDeltaNetAttention, whose state mkv_ascend cannot take back to the "
                    f"last accepted token on {host_versions.vllm()}. Leave speculation out for "
                    "this model"
                )
    cache, scheduler = config.cache_config, config.scheduler_config
    most = scheduler.max_num_scheduled_tokens or scheduler.max_num_batched_tokens
    if cache.mamba_cache_mode == "align" and most < cache.block_size:
        raise ValueError(
            f"states are kept at the end of each block of {cache.block_size} tokens, but a step "
            f"takes at most {most}: a long prompt would wait for ever. Of max_num_batched_tokens "
            f"({scheduler.max_num_batched_tokens}) drafts keep the rest; raise it by "
            f"{cache.block_size - most} or more, or switch prefix caching off"
        )
