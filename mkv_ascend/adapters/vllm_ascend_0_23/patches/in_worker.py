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
from mkv_ascend.adapters.vllm_ascend_0_23.drafting import shared_context
from mkv_ascend.adapters.vllm_ascend_0_23.kv_cache import in_worker
from mkv_ascend.adapters.vllm_ascend_0_23.patches import (
    attention,
    experts,
    pipeline,
    quantized,
    recurrent,
    sparse_counts,
    start_up,
    target_fixes,
)


def apply() -> None:
    """Apply them. Idempotent."""
    layers.choose_backend.apply()
    bound_caches.bind_as_layers_take.apply()
    recurrent.no_verify_steps.apply()
    layers.also_change(attention.leave_the_cache_to_its_owner)
    attention.read_it_from_the_group()
    target_fixes.spec_without_mla.apply()
    value_head_size.project_values.apply()
    sparse_counts.install()
    experts.activate_all_rows.apply()
    experts.tell_the_layer.apply()
    target_fixes.count_attentions.apply()
    target_fixes.skip_the_drafting_layer.apply()
    target_fixes.install()
    target_fixes.ask_the_router.apply()
    recurrent.blocks_without_alignment.apply()
    recurrent.remember_drafted.apply()
    recurrent.rows_that_verify.apply()
    recurrent.install()
    pipeline.give_each_an_attention_group.apply()
    quantized.install()
    target_fixes.capture_as_if_with_sinks.apply()
    quantized.read_descriptions.apply()
    target_state_groups.groups_that_move.apply()
    sampled_rows.swap_both_masks.apply()
    shared_context.mask_by_stretches.apply()
    in_worker.keep_the_pool_closed.apply()
    start_up.hash_the_draft.apply()
