# SPDX-License-Identifier: Apache-2.0
"""A decoder layer may have two attentions, each with an index of its own."""

from __future__ import annotations

from typing import Any

from mkv_ascend.adapters.patching import patch


@patch(
    name="two attentions of a layer",
    target="vllm_ascend.patch.worker.patch_deepseek_v2:extract_layer_index",
    reads=(
        "vllm.model_executor.models.longcat_flash:FlashDecoderLayer.__init__",
        "vllm_ascend.patch.worker.patch_deepseek_v2:_deepseek_v2_mla_attention_init",
    ),
)
def count_attentions(original: Any, name: str, *args: Any) -> int:
    """``extract_layer_index``, which counts attentions where a layer has two."""
    in_pairs = name.rpartition(".")[2].isdigit()
    found: int = original(name, *((2,) if in_pairs else args))
    return found
