# SPDX-License-Identifier: Apache-2.0
"""Tests on the emulated NPU that `make test` runs on vllm-ascend 0.30.0rc2, V1 and V2.

The emulated NPU, models that need more than attention, and drafts. Add a folder when all of it
passes there. The tiny models themselves are judged on the default host.
"""

from __future__ import annotations

from tested_files import (
    ADAPTED,
    ALL_DEFAULTS,
    AT_RANDOM,
    BEHIND_STAGES,
    CELL,
    CELL_WITH_HITS,
    COMPRESSED,
    COST,
    DECODED_LATENTS,
    DRAFT_WINDOWS,
    EIGHT_BITS,
    EIGHT_BITS_OF_TARGETS,
    GIVING_UP,
    GRAPHS,
    GROUPS,
    HIDDEN_STATES,
    HITS,
    ISOLATION,
    LOADS,
    MAMBA,
    PAIRS,
    PICTURES,
    PLANNED,
    RANKS,
    REFERENCE,
    REPLICATED,
    REPLICATED_BY_HAND,
    REQUESTS,
    SEAT,
    SHARED_TOKENS,
    SHARES,
    SHARES_BY_HAND,
    STAGES,
    STATED,
    STATES,
    STATES_IN_STAGES,
    STOCK,
    TRACED,
    V2,
    V2_GRAPHS,
    V2_SHARES,
    V2_STAGES,
    V2_STATES,
    V2_STOCK_GRAPHS,
    WINDOWS,
)

EMULATED = (
    "tests/emulated/device",
    # How the emulated NPU starts a process, and not what vLLM asks of it.
    "--deselect=tests/emulated/device/test_triton.py"
    "::test_vllm_finds_triton_as_the_setting_says_and_kernels_run_either_way",
    "tests/emulated/benchmarks/test_benchmark_kv_layout.py",
    # Kimi delta attention, which 0.23.0 refuses beside drafts.
    f"{CELL}[kda/dense]",
    f"{CELL_WITH_HITS}[gpt-oss/dflash]",
    f"{CELL_WITH_HITS}[gemma4/mtp]",
    "tests/emulated/drafting/test_causal_blocks.py",
    "tests/emulated/drafting/test_markov_heads.py",
    "tests/emulated/drafting/test_speculators_format.py",
    "tests/emulated/drafting/test_windows_in_blocks.py",
    "tests/emulated/drafting/test_symmetric_windows.py",
    "tests/emulated/drafting/test_markov_options.py",
    "tests/emulated/drafting/test_markov_tokens.py",
    "tests/emulated/drafting/test_target_keys.py",
    f"{EIGHT_BITS}::test_target_of_8_bits_with_bfloat16_draft[graphs-v2]",
    f"{EIGHT_BITS_OF_TARGETS}::test_a_head_on_a_target_of_8_bits[graphs-v2]",
    # A matrix beside the layers is put back in the same way; model runner V1 needs nothing of ours.
    "tests/emulated/drafting/test_own_output_matrix.py"
    "::test_each_draft_token_comes_from_the_layers_own_matrix[v2-in the layer]",
    # Targets that see pictures. A layer that is given them takes minutes, and is run by hand.
    f"{PICTURES}::test_a_head_with_axes[v2]",
    # A target in several groups; the other one is run by hand.
    f"{HIDDEN_STATES}[qwen3_next-v1]",
    f"{HIDDEN_STATES}[gpt_oss-v2]",
    "tests/emulated/layout/test_block_zeroer.py",
    "tests/emulated/layout/test_bookkeeping.py",
    # Plans from numbers, from built models and of engines: experts, states, indexers, heads.
    f"{PLANNED}[gdn, gdn]",
    f"{PLANNED}[eagle3]",
    "tests/emulated/layout/test_planner.py::test_weights_and_ranks_that_are_not_there_are_built",
    "tests/emulated/layout/test_planner.py::test_rotary_tables_larger_than_the_device_are_built",
    "tests/emulated/layout/test_layout_engines.py"
    "::test_the_drafts_cache_may_have_a_dtype_of_its_own",
    "tests/emulated/layout/test_kernel_blocks.py",
    "tests/emulated/layout/test_layout_groups.py",
    f"{PLANNED}[mla, windows, v2]",
    "tests/emulated/layout/test_planned_runner.py",
    "tests/emulated/layout/test_requests_at_once.py",
    "tests/emulated/models/test_adapted_backends.py",
    "tests/emulated/models/test_attention_arguments.py",
    "tests/emulated/models/test_blocks_of_drafting_layers.py",
    "tests/emulated/models/test_encoders.py",
    f"{COMPRESSED}::test_stock_model_runner_v2_alone",
    f"{COMPRESSED}::test_dense_draft_in_graphs[v2]",
    f"{COMPRESSED}::test_mtp_layer_in_graphs[v2]",
    f"{COMPRESSED}::test_mtp_layer_in_default_graphs[v1]",
    f"{COMPRESSED}::test_k_by_batch_size_on_model_runner_v2[FULL_DECODE_ONLY]",
    "tests/emulated/models/test_mimo_v2.py",
    "tests/emulated/models/test_mla_specs.py",
    "tests/emulated/models/test_sparse_models.py::test_tokens_are_those_of_the_chosen_keys",
    "tests/emulated/models/test_step3p5.py::test_tokens_and_drafts_in_bfloat16[v1-mtp-graphs]",
    "tests/emulated/models/test_shared_caches.py"
    "::test_a_layer_that_shares_joins_a_group_of_unlike_pages",
    "tests/emulated/models/test_shared_caches.py"
    "::test_target_whose_layers_share_caches_with_a_draft_in_its_group",
    "tests/emulated/models/test_shared_caches.py::test_a_draft_whose_layers_share_caches[v2]",
    f"{STOCK}::test_mamba2_is_not_served_by_model_runner_v1",
    # Model runner V2: stock, drafts by plain loops, in graphs, at random, on ranks, by count.
    "tests/emulated/runner_v2/test_stock.py::test_a_target_alone[llama_target]",
    f"{V2_STOCK_GRAPHS}::test_graphs_of_a_target[FULL_DECODE_ONLY-False]",
    f"{V2_STOCK_GRAPHS}::test_the_first_pass_updates_one_layer_of_a_head_of_two",
    f"{V2_STOCK_GRAPHS}::test_later_passes_give_all_layers_the_blocks_of_the_first_ones_group",
    "tests/emulated/runner_v2/test_speculator.py",
    f"{V2}::test_proposals_and_acceptance_are_the_references[gemma3-gemma3_draft-draft_model-3]",
    f"{V2}::test_proposals_and_acceptance_are_the_references[gpt_oss-gpt_oss_eagle3-eagle3-3]",
    f"{V2}::test_proposals_and_acceptance_are_the_references[gpt_oss-gpt_oss_dflash-dflash-3]",
    f"{V2}::test_a_target_whose_class_gives_no_states",
    f"{V2_GRAPHS}::test_independent_drafts[deepseek_v2_target-deepseek_v2_draft-3]",
    f"{V2_GRAPHS}::test_heads_propose_as_in_eager_mode[gpt_oss-gpt_oss_eagle3-eagle3-3]",
    # A draft with experts in step with another rank's, eagerly and from graphs.
    f"{RANKS}::test_ranks_of_v2_start_where_vllm_traces",
    f"{RANKS}::test_stages_of_v2_draft_as_those_of_v1_do",
    f"{RANKS}::test_rows_of_no_request_reach_nobody[v2]",
    f"{RANKS}::test_ranks_are_idle_in_turn_in_graphs[gpt_oss-gpt_oss_draft-draft_model-2-v2]",
    "tests/emulated/runner_v2/test_ranks.py::test_two_ranks_of_tensor_parallelism[graphs]",
    f"{V2_SHARES}::test_a_dense_draft_for_mla[graphs]",
    f"{V2_SHARES}::test_a_head_of_mla_behind_prefix_hits[default]",
    f"{V2_SHARES}::test_letters_that_a_head_of_mla_drafts_need_every_key",
    f"{V2_SHARES}::test_a_head_of_sparse_mla_behind_prefix_hits",
    f"{V2_SHARES}::test_dense_heads_behind_prefix_hits"
    "[eagle3-deepseek_v2_target-deepseek_v2_one_key_eagle3-graphs]",
    f"{V2_SHARES}::test_a_draft_of_mla[llama_one_key_head-graphs]",
    f"{V2_SHARES}::test_a_draft_with_windows_of_which_each_rank_keeps_all_keys[llama_one_key_head]",
    # Where ranks share keys: heads of MLA and dense ones, drafts for an MLA target and for itself.
    SHARES,
    REPLICATED,
    *(f"--deselect={one}" for one in (*SHARES_BY_HAND, *REPLICATED_BY_HAND)),
    # Over pipeline stages, from graphs; on model runner V2 also heads without embeddings.
    f"{BEHIND_STAGES}[draft_model-FULL_DECODE_ONLY]",
    f"{STAGES}::test_a_draft_has_all_its_layers_however_the_targets_are_shared_out",
    f"{STATES_IN_STAGES}::test_preempted_requests_begin_again",
    "tests/emulated/runner_v2/test_loading.py",
    "tests/emulated/runner_v2/test_parts.py",
    f"{V2_STAGES}::test_tokens_proposals_and_acceptance_are_the_references"
    "[draft_model-FULL_DECODE_ONLY]",
    f"{V2_STAGES}::test_tokens_proposals_and_acceptance_are_the_references[embeddings-None]",
    f"{V2_STAGES}::test_heads_on_hidden_states_of_layers_of_both_stages[dflash-FULL_DECODE_ONLY]",
    f"{V2_STATES}::test_stages_with_states_alone_and_with_keys_alone",
    # A draft that is given up, without asynchronous scheduling and in graphs of whole steps.
    f"{GIVING_UP}::test_nothing_is_drafted_or_verified_any_more[synchronous-v2]",
    f"{GIVING_UP}::test_whole_steps_are_replayed_from_graphs_all_the_same[v2]",
    # K by batch size: a load of 1 -> 8 -> 1 requests, and one of 32 without waiting.
    f"{LOADS}::test_each_number_of_drafts_is_replayed",
    f"{LOADS}::test_each_draft_token_is_the_drafts_own",
    f"{LOADS}::test_launches_follow_the_number_of_drafts",
    f"{LOADS}::test_an_eager_proposal_has_as_many_passes_as_tokens",
    f"{LOADS}::test_a_step_finds_the_graph_of_its_own_number",
    f"{LOADS}::test_a_load_of_32_with_asynchronous_scheduling",
    f"{LOADS}::test_states_go_on_from_what_was_accepted[mamba2]",
    f"{LOADS}::test_states_go_on_from_what_was_accepted[convolutions]",
    f"{AT_RANDOM}[llama_target-probabilistic-FULL_DECODE_ONLY]",
    f"{AT_RANDOM}[llama_target-greedy-None]",
    "tests/emulated/runner_v2/test_cost.py",
    "tests/emulated/runner_v2/test_planned_caches.py",
    "tests/emulated/runner_v2/test_axes_in_turns.py",
    "tests/emulated/runner_v2/test_moved_experts.py"
    "::test_proposals_and_acceptance_are_the_references[deepseek_v3_mtp-deepseek_v3_mtp-mtp-FULL_DECODE_ONLY]",
    f"{DECODED_LATENTS}[draft_model-v1]",
    f"{DECODED_LATENTS}[mtp-v2]",
    "tests/emulated/kv_transfer/test_kv_offload.py"
    "::test_blocks_of_several_groups_come_back_by_vllms_own_offload",
    "tests/emulated/platform/test_early_check.py",
    "tests/emulated/platform/test_failed_ranks.py"
    "::test_each_request_is_answered_or_fails_at_once[draft-v2]",
    "tests/emulated/platform/test_front_check.py",
    "tests/emulated/platform/test_graph_modes.py",
    "tests/emulated/platform/test_scheduling.py",
    "tests/emulated/platform/test_platform.py",
    "tests/emulated/platform/test_serve_arguments.py",
    SEAT,
    # What vLLM makes of entry points and VLLM_PLUGINS, as on 0.23.0.
    f"--deselect={SEAT}::test_uninstalled_leaves_stock",
    f"--deselect={SEAT}::test_leaving_us_out_of_vllm_plugins_gives_stock",
    f"--deselect={SEAT}::test_a_platform_that_vllm_dropped_ends_the_process_instead_of_running_stock",
    f"--deselect={SEAT}::test_both_orders_of_discovery_give_our_platform_and_all_general_plugins"
    "[reversed]",
    "tests/emulated/platform/test_serve.py"
    "::test_a_server_gives_the_targets_own_tokens_and_reports_acceptance",
    f"{STATES}::test_states_where_the_longest_context_ends[kda-v1]",
    f"{STATES}::test_states_where_the_longest_context_ends[kda-v2]",
    f"{STATES}::test_states_after_preemption_and_looked_up_drafts",
    f"{STATES}::test_steps_of_less_than_a_block[v2-limits0]",
    f"{STATES}::test_steps_of_less_than_a_block_are_refused",
    f"{MAMBA}::test_states_are_taken_back_to_what_was_accepted[granite4-v1]",
    # Drafts with states behind hits: blocks alone, in graphs, resumed, beside other states.
    "tests/emulated/recurrent/test_draft_state_blocks.py",
    f"{HITS}::test_hits_are_those_without_the_draft[llama_target-lfm2-fields1-v1]",
    "tests/emulated/runner_v2/test_recurrent_drafts.py"
    "::test_proposals_and_acceptance_are_the_references[llama_target-lfm2-3]",
    # On model runner V2 from graphs, beside chunks and a prompt of one token.
    f"{STATED}[qwen3_moe-qwen3_next_draft-limits0-v2]",
    f"{STATED}[kimi delta attention-v2]",
    f"{HITS}::test_states_of_the_target_are_hit_and_those_of_the_draft_rebuilt"
    "[qwen3_next-qwen3_next_draft-v2]",
    f"{WINDOWS}::test_windows_go_back_to_what_was_accepted[lfm2-llama_draft-graphs]",
    f"{WINDOWS}::test_sizes_that_the_operator_does_not_take_are_refused",
    f"{WINDOWS}::test_windows_in_another_dtype_than_the_model_are_refused",
    f"{WINDOWS}::test_an_update_is_that_of_plain_loops",
    "tests/emulated/recurrent/test_skipped_requests.py"
    "::test_what_was_accepted_outlives_a_step_without_tokens[granite4-True]",
    # Drafts: eagle3 and dflash by plain loops, MLA's, one in two groups, vLLM's default graphs.
    f"{REFERENCE}[llama_target-llama_eagle3-eagle3-3]",
    f"{REFERENCE}[gpt_oss-gpt_oss_dflash-dflash-3]",
    f"{PAIRS}::test_mla_target_with_dense_draft[tp1]",
    f"{PAIRS}::test_an_mla_model_drafting_for_itself_is_always_accepted",
    f"{GRAPHS}::test_default_settings_of_vllm_serve",
    "tests/emulated/drafting/test_prefix_hits_of_heads.py"
    "::test_a_shifted_draft_gives_up_one_block_and_is_right"
    "[gpt_oss-gpt_oss_eagle3-eagle3-gpt_oss-1-v2]",
    # Traced by Dynamo: on two ranks and, on model runner V2, over two stages, and a head that reads
    # the target's keys.
    f"{TRACED}::test_on_one_device[queries-v2]",
    f"{TRACED}::test_on_two_ranks[eagle3-v1]",
    f"{TRACED}::test_on_two_ranks[filled-up-v2]",
    f"{TRACED}::test_over_two_stages[draft_model-v2]",
    # All defaults at once, and tokens that ranks share out.
    f"{ALL_DEFAULTS}[windows]",
    "tests/emulated/graphs/test_all_defaults.py::test_beside_recurrent_states[v2]",
    f"{SHARED_TOKENS}::test_eagerly[mtp]",
    f"{SHARED_TOKENS}::test_eagerly[eagle3]",
    f"{SHARED_TOKENS}::test_eagerly[mla]",
    # A window of the draft, which no layer of its model has.
    f"{DRAFT_WINDOWS}::test_proposals_and_acceptance_are_those_of_a_masked_draft"
    "[llama_target-llama_draft-draft_model-3-None-v1]",
    f"{DRAFT_WINDOWS}::test_proposals_and_acceptance_are_those_of_a_masked_draft"
    "[gpt_oss-gpt_oss_eagle3-eagle3-3-FULL_DECODE_ONLY-v2]",
    f"{DRAFT_WINDOWS}::test_blocks_behind_the_window_are_given_back[True-v2]",
    # Several ranks, an idle one among them; graphs of MLA, whose launches are updated apart.
    f"{PAIRS}::test_mla_target_with_dense_draft[tp2]",
    f"{GRAPHS}::test_independent_drafts[deepseek_v2_target-deepseek_v2_draft-3]",
    # What requests ask for: LoRA, grammars, aborts, preemption, sampling.
    *(
        f"{REQUESTS}::{test}[{runner}{sort}]"
        for runner in ("v1", "v2-graphs")
        for test, sort in (
            ("test_the_adapter_is_the_targets_alone", ""),
            ("test_drafts_are_accepted", "-adapted"),
            ("test_drafts_are_accepted", "-letters"),
            ("test_graphs_of_target_and_draft_are_replayed_where_asked_for", ""),
            ("test_grammars_hold_and_tokens_are_those_without_a_draft", ""),
            ("test_an_aborted_request_leaves_nothing_behind", ""),
            ("test_every_draft_token_is_the_drafts_own", ""),
        )
    ),
    f"{ADAPTED}[mtp-v2]",
    f"{ADAPTED}[eagle-v2-graphs]",
    f"{ADAPTED}[eagle3-v1-graphs]",
    "tests/emulated/drafting/test_grammars.py::test_tokens_are_those_without_a_draft[v2-async]",
    "tests/emulated/drafting/test_grammars.py::test_over_pipeline_stages",
    "tests/emulated/drafting/test_changes_within_steps.py"
    "::test_a_change_at_each_place_of_a_step[v2-async]",
    "tests/emulated/drafting/test_prompts_in_parts.py"
    "::test_it_is_refused_and_others_are_answered[v2]",
    "tests/emulated/drafting/test_adapters_beside_heads.py::test_over_pipeline_stages[eagle3-graphs]",
    # vllm-ascend would skip a batch near the longest context.
    "tests/emulated/drafting/test_drafting_blocks.py"
    "::test_one_group_chunks_prefix_hits_and_the_maximum_length",
    f"{GROUPS}::test_preemption_with_asynchronous_scheduling",
    f"{GROUPS}::test_proposals_where_vllm_shortens_requests_to_memory[v2]",
    f"{GROUPS}::test_aborted_requests_leave_the_others_as_they_were",
    "tests/emulated/drafting/test_drafting_sampling.py",
    "tests/emulated/drafting/test_hostile_requests.py",
    "tests/emulated/drafting/test_prompt_embeddings.py",
    "tests/emulated/drafting/test_own_weights_told.py::test_embeddings_of_another_checkpoint[own-v1]",
    "tests/emulated/drafting/test_own_weights_told.py::test_embeddings_of_another_checkpoint[own-v2]",
    # MLA's matrices made of weights, and graphs that sleep.
    "tests/emulated/drafting/test_new_weights.py",
    "tests/emulated/drafting/test_sleep.py::test_a_head_keeps_what_is_its_own[v1]",
    "tests/emulated/drafting/test_sleep.py::test_what_sleeps_wakes_up_as_it_was[v2]",
    "tests/emulated/drafting/test_sleep.py::test_mask_tokens_are_not_lost_with_the_weights",
    "tests/emulated/drafting/test_proposers.py",
    "tests/emulated/drafting/test_target_parts.py",
    "tests/emulated/drafting/test_predictor_modules.py",
    # What of the process is the target's, and what the draft's.
    ISOLATION,
    # Each pair on one model runner; by hand on the other.
    f"--deselect={ISOLATION}::test_a_draft_that_rotates_otherwise_leaves_the_targets_rotation[v1]",
    f"--deselect={ISOLATION}::test_a_target_that_rotates_otherwise_leaves_the_drafts_rotation[v2]",
    f"--deselect={ISOLATION}::test_a_draft_with_as_many_experts_leaves_the_targets[v1]",
    "tests/emulated/drafting/test_draft_loading.py",
    "tests/emulated/drafting/test_missing_weights.py"
    "::test_a_part_of_a_fused_matrix_and_a_whole_one[v2]",
    "tests/emulated/drafting/test_parts_of_drafts.py",
    "tests/emulated/drafting/test_parts_of_building.py",
    # What the host reads, by count, and how metadata is shared.
    f"{COST}::test_a_replayed_proposal_is_four_launches_beside_its_graph",
    f"{COST}::test_the_host_reads_nothing_where_operators_take_lengths_as_tensors"
    "[flash_attention_3]",
    "tests/emulated/drafting/test_draft_metadata.py",
    "tests/emulated/drafting/test_passes_over_shares.py",
    "tests/emulated/drafting/test_target_pass.py",
    "tests/emulated/graphs/test_draft_launches.py",
    "tests/emulated/graphs/test_task_updates.py",
)
