# SPDX-License-Identifier: Apache-2.0
"""Which patches a worker process needs before a model is built."""

from __future__ import annotations

from mkv_ascend.adapters.common.attention import layers
from mkv_ascend.adapters.common.patches import (
    bound_caches,
    sampled_rows,
    target_state_groups,
    value_head_size,
)
from mkv_ascend.adapters.vllm_ascend_0_30.common.attention import symmetric_windows
from mkv_ascend.adapters.vllm_ascend_0_30.common.kv_cache import worker_memory
from mkv_ascend.adapters.vllm_ascend_0_30.common.patches import (
    context_keys,
    convolution_update,
    expert_methods,
    experts_without_gates,
    gdn_rows,
    int8_captures,
    quantised_drafts,
    sparse_counts,
)


def apply() -> None:
    """Apply them. Idempotent."""
    layers.choose_backend.apply()
    symmetric_windows.install()
    bound_caches.bind_as_layers_take.apply()
    worker_memory.offer_all.apply()
    value_head_size.project_values.apply()
    sparse_counts.number_of_keys.apply()
    context_keys.rotate_in_place.apply()
    convolution_update.UPDATES.apply()
    gdn_rows.install()
    int8_captures.install()
    quantised_drafts.NAMES.apply()
    expert_methods.key_of_all_numbers.apply()
    experts_without_gates.activate_all_rows.apply()
    target_state_groups.groups_that_move.apply()
    sampled_rows.swap_both_masks.apply()
