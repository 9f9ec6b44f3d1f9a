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
from mkv_ascend.adapters.vllm_ascend_0_30.common.kv_cache import engine_core
from mkv_ascend.adapters.vllm_ascend_0_30.common.patches import (
    experts,
    mask_tokens,
    quantized,
    recurrent,
    sparse_counts,
)


def apply() -> None:
    """Apply them. Idempotent."""
    layers.choose_backend.apply()
    mask_tokens.install()
    bound_caches.bind_as_layers_take.apply()
    engine_core.offer_all.apply()
    value_head_size.project_values.apply()
    sparse_counts.number_of_keys.apply()
    mask_tokens.rotate_in_place.apply()
    recurrent.UPDATES.apply()
    recurrent.install()
    quantized.install()
    quantized.NAMES.apply()
    experts.key_of_all_numbers.apply()
    experts.activate_all_rows.apply()
    target_state_groups.groups_that_move.apply()
    sampled_rows.swap_both_masks.apply()
