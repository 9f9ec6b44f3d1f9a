# SPDX-License-Identifier: Apache-2.0
"""Which patches a worker process needs before a model is built."""

from __future__ import annotations

from mkv_ascend.adapters.common.attention import layers
from mkv_ascend.adapters.common.patches import attention as attention_of_all_hosts
from mkv_ascend.adapters.common.patches import sampled_rows
from mkv_ascend.adapters.vllm_ascend_0_23.drafting import shared_context
from mkv_ascend.adapters.vllm_ascend_0_23.kv_cache import worker_caches
from mkv_ascend.adapters.vllm_ascend_0_23.patches import (
    attention,
    experts,
    pipeline,
    quantized,
    recurrent,
    start_up,
    target_fixes,
)

PATCHES = (
    layers.choose_backend,
    attention_of_all_hosts.bind_as_layers_take,
    attention_of_all_hosts.project_values,
    experts.activate_all_rows,
    experts.tell_the_layer,
    pipeline.give_each_an_attention_group,
    sampled_rows.swap_both_masks,
    shared_context.mask_by_stretches,
    worker_caches.keep_the_pool_closed,
    start_up.hash_the_draft,
)


def apply() -> None:
    """Apply them. Idempotent."""
    for patch in PATCHES:
        patch.apply()
    for feature in (attention, target_fixes, recurrent, quantized):
        feature.install()
