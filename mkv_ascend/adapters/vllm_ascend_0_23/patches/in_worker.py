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
from mkv_ascend.adapters.vllm_ascend_0_23.attention import shared_keys, sparse_block_size
from mkv_ascend.adapters.vllm_ascend_0_23.patches import (
    decode_thresholds,
    dense_specs,
    exaone_router,
    experts_without_gates,
    gdn_rows,
    groups_without_layers,
    identity_experts,
    int8_captures,
    kept_graphs,
    longcat_weights,
    openpangu_drafts,
    paired_attentions,
    pool_of_caches,
    prompt_chunks,
    quantised_drafts,
    recurrent_blocks,
    short_convolution,
    sinks_of_some_layers,
    sparse_counts,
    verified_rows_of_shares,
)


def apply() -> None:
    """Apply them. Idempotent."""
    layers.choose_backend.apply()
    bound_caches.bind_as_layers_take.apply()
    prompt_chunks.no_verify_steps.apply()
    layers.also_change(shared_keys.leave_the_cache_to_its_owner)
    sparse_block_size.read_it_from_the_group()
    dense_specs.spec_without_mla.apply()
    value_head_size.project_values.apply()
    sparse_counts.install()
    experts_without_gates.activate_all_rows.apply()
    identity_experts.tell_the_layer.apply()
    paired_attentions.count_attentions.apply()
    longcat_weights.skip_the_drafting_layer.apply()
    openpangu_drafts.install()
    exaone_router.ask_the_router.apply()
    recurrent_blocks.blocks_without_alignment.apply()
    short_convolution.remember_drafted.apply()
    decode_thresholds.rows_that_verify.apply()
    gdn_rows.install()
    groups_without_layers.give_each_an_attention_group.apply()
    int8_captures.install()
    sinks_of_some_layers.capture_as_if_with_sinks.apply()
    quantised_drafts.read_descriptions.apply()
    target_state_groups.groups_that_move.apply()
    sampled_rows.swap_both_masks.apply()
    verified_rows_of_shares.mask_by_stretches.apply()
    pool_of_caches.keep_the_pool_closed.apply()
    kept_graphs.hash_the_draft.apply()
