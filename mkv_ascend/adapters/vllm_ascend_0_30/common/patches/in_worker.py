# SPDX-License-Identifier: Apache-2.0
"""Which patches a worker process needs before a model is built."""

from __future__ import annotations

from mkv_ascend.adapters.common.attention import layers
from mkv_ascend.adapters.common.patches import attention, sampled_rows
from mkv_ascend.adapters.vllm_ascend_0_30.common.kv_cache import engine_core
from mkv_ascend.adapters.vllm_ascend_0_30.common.patches import (
    experts,
    mask_tokens,
    quantized,
    recurrent,
    sparse_counts,
)

PATCHES = (
    layers.choose_backend,
    attention.bind_as_layers_take,
    attention.project_values,
    engine_core.offer_all,
    experts.key_of_all_numbers,
    experts.activate_all_rows,
    sampled_rows.swap_both_masks,
    sparse_counts.number_of_keys,
)


def apply() -> None:
    """Apply them. Idempotent."""
    for patch in PATCHES:
        patch.apply()
    for feature in (mask_tokens, recurrent, quantized):
        feature.install()
