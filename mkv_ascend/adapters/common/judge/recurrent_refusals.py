# SPDX-License-Identifier: Apache-2.0
"""What layers with recurrent states cannot do, refused when the model is loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mkv_ascend import host_versions

if TYPE_CHECKING:
    from vllm.config import VllmConfig


def refuse(config: VllmConfig, target_layers: dict[str, Any]) -> None:
    """Check the layers of the target, by name.

    Raises:
        NotImplementedError: drafts are asked for beside states that cannot be taken back.
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
