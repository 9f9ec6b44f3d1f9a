# SPDX-License-Identifier: Apache-2.0
"""Which patches a worker process needs before a model is built."""

from __future__ import annotations

from mkv_ascend.adapters.common.attention import layers
from mkv_ascend.adapters.common.patches import attention as attention_of_all_hosts
from mkv_ascend.adapters.common.patches import sampled_rows
from mkv_ascend.adapters.vllm_ascend_0_30.common.kv_cache import engine_core
from mkv_ascend.adapters.vllm_ascend_0_30.common.patches import (
    attention,
    experts,
    quantized,
    recurrent,
)

PATCHES = (
    layers.choose_backend,
    attention_of_all_hosts.bind_as_layers_take,
    attention_of_all_hosts.project_values,
    engine_core.offer_all,
    experts.key_of_all_numbers,
    experts.activate_all_rows,
    sampled_rows.swap_both_masks,
)


def apply() -> None:
    """Apply them. Idempotent."""
    for patch in PATCHES:
        patch.apply()
    for feature in (attention, recurrent, quantized):
        feature.install()
