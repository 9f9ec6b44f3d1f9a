# SPDX-License-Identifier: Apache-2.0
"""Which tests `make test` runs on each host."""

from __future__ import annotations

from tested_files import (
    ADAPTED,
    AT_RANDOM,
    BEHIND_STAGES,
    CELL,
    COMPRESSED,
    COST,
    DISAGGREGATED,
    DRAFT_WINDOWS,
    EIGHT_BITS,
    EIGHT_BITS_OF_TARGETS,
    GIVING_UP,
    GRAPHS,
    GROUPS,
    HITS,
    INSIDE,
    LOADS,
    MAMBA,
    PAIRS,
    PICTURES,
    PLANNED,
    PREDICTED,
    RANKS,
    REFERENCE,
    REQUESTS,
    SEAT,
    SETTINGS,
    SHARES_BY_HAND,
    STAGES,
    STATED,
    STATES,
    STATES_OF_STAGES,
    STOCK,
    V2,
    V2_GRAPHS,
    V2_STAGES,
    V2_STOCK_GRAPHS,
    WINDOWS,
)

HOSTLESS_ROOMS = ("advice", "ascend_kernels", "ascendc_host", "attention", "layout", "ops")
UNIT = {
    "0.23": ("tests/unit",),
    "0.30": (
        "tests/unit",
        # What is built and shipped is the same for each host, and so are the tools that read it.
        "--ignore=tests/unit/install",
        # Rooms and kernels that import nothing of a host, which lint sees to, beside one torch.
        *(f"--ignore=tests/unit/{room}" for room in HOSTLESS_ROOMS),
        "--ignore=tests/unit/drafting/test_proposal.py",
        "--ignore=tests/unit/support",
        "--ignore=tests/unit/commands/test_advise.py",
        "--ignore=tests/unit/benchmarks/test_ops.py",
        "--ignore=tests/unit/reliability/test_calls.py",
    ),
}
"""Host -> its unit tests."""
EMULATED = {
    "0.23": (
        "tests/emulated",
        # Run by hand: three engines more, none of which is unlike all of those that stay.
        *(f"--deselect={ADAPTED}[{one}]" for one in ("eagle-v1-graphs", "eagle3-v1", "dflash-v1")),
        # Published, and run by hand: they train models of their own, or are as rows that stay.
        *(
            f"--deselect={CELL}[{cell}]"
            for cell in (
                *("mamba2/short conv", "dense/gdn", "mla/window+full"),
                *("ernie4.5-moe/mtp", "hunyuan3/mtp", "glm4-moe/mtp", "mimo/mtp"),
                *("dense/window+full", "qwen3.5-moe/mtp", "nemotron-h/mtp"),
                *("longcat/mtp", "step3.5/mtp", "glm4.7-flash/mtp"),
                *("exaone-moe/mtp", "openpangu/mtp", "mimo-v2/mtp"),
                *("minimax-m2/eagle3", "qwen3/dense", "qwen3-moe/dense", "qwen3.5/dense"),
            )
        ),
        "--deselect=tests/emulated/models/test_longcat_flash.py"
        "::test_experts_without_matrices_count_once_for_all_ranks",
        # In graphs, as another draft with experts and one without; eagerly, the split head stays.
        f"--deselect={RANKS}::test_ranks_are_idle_in_turn_in_graphs"
        "[deepseek_v3_mtp-deepseek_v3_mtp-mtp-1-v1]",
        f"--deselect={RANKS}::test_ranks_are_idle_in_turn_in_graphs"
        "[gpt_oss-gpt_oss_dflash-dflash-2-v1]",
        f"--deselect={RANKS}::test_ranks_are_idle_in_turn[",
        f"--deselect={RANKS}::test_experts_spread_over_the_ranks",
        # Experts with states, which draft eagerly beside graphs of the target.
        f"--deselect={RANKS}::test_experts_with_states_run_eagerly_beside_graphs",
        # An MLA head, and a dense draft for an MLA target, stay.
        *(f"--deselect={one}" for one in SHARES_BY_HAND),
        # One device, and several with an MLA target, stay.
        f"--deselect={PAIRS}::test_dense_target_with_dense_draft_on_another_backend[tp2]",
        f"--deselect={PAIRS}::test_a_model_drafting_for_itself_is_always_accepted[tp2]",
        # Over pipeline stages: four of them stay, and one of graphs runs on 0.30.0rc2.
        f"--deselect={BEHIND_STAGES}[draft_model",
        f"--deselect={BEHIND_STAGES}[mtp-None",
        f"--deselect={BEHIND_STAGES}[eagle-FULL_DECODE_ONLY",
        # Heads on states of both stages: one of eagle3 in graphs stays; dflash goes the same way.
        f"--deselect={STATES_OF_STAGES}[eagle3-None",
        f"--deselect={STATES_OF_STAGES}[eagle3-FULL_AND_PIECEWISE",
        f"--deselect={STATES_OF_STAGES}[dflash",
        f"--deselect={STAGES}::test_a_stage_in_between_sends_on_what_it_was_sent",
        f"--deselect={STAGES}::test_a_head_on_hidden_states_of_a_part_of_the_tokens",
        f"--deselect={STAGES}::test_more_requests_than_two_batches_hold",
        f"--deselect={STAGES}::test_what_vllm_schedules_ahead_by_itself_is_not",
        f"--deselect={STAGES}::test_tokens_that_are_looked_up",
        # Judged by plain loops on 0.30.0rc2, as a cell, or as alike pairs are that stay.
        *(
            f"--deselect={REFERENCE}[{pair}]"
            for pair in (
                "gemma3_alternating-gemma3_alternating_perturbed-draft_model-5",
                "llama_target-deepseek_v2_draft-draft_model-3",
                "deepseek_v2_target-deepseek_v2_draft-draft_model-2",
                "llama_target-llama_eagle3-eagle3-3",
                "granite4-granite4_dflash-dflash-3",
                "lfm2-lfm2_dflash-dflash-3",
                "qwen3_next-llama_draft-draft_model-4",
            )
        ),
        # A draft of one group and one of several are given up alike.
        f"--deselect={GIVING_UP}::test_nothing_is_drafted_or_verified_any_more[synchronous-v1]",
        f"--deselect={GIVING_UP}::test_a_draft_that_is_accepted_often_enough_goes_on",
        # Named inside as Gemma3, which stays. They are run where a host has a new release.
        *(
            f"--deselect={INSIDE}[{architecture}ForConditionalGeneration]"
            for architecture in (
                *("Cohere2Vision", "Gemma4", "SmolVLM", "InternVL", "KimiVL", "KimiK25"),
                *("Llava", "LlavaNext", "LlavaOnevision", "Mistral3", "Qwen2VL", "Qwen2_5_VL"),
                *("Qwen3VL", "Qwen3VLMoe", "Qwen3_5", "Qwen3_5Moe", "Idefics3", "Lfm2Vl"),
            )
        ),
        # Layers that predict, of numbers alone: those of GLM stay.
        *(f"--deselect={PREDICTED}[{model}]" for model in ("hy_v3", "ernie4_5_moe")),
        # The server of 0.30.0rc2 is asked the same.
        "--deselect=tests/emulated/platform/test_serve.py"
        "::test_a_server_gives_the_targets_own_tokens_and_reports_acceptance",
        # In graphs, and eagerly with the other family.
        f"--deselect={MAMBA}::test_states_of_preempted_requests[granite4-eager-v1]",
        f"--deselect={MAMBA}::test_states_where_the_longest_context_ends[lfm2-",
        f"--deselect={MAMBA}::test_states_of_preempted_requests[lfm2-graphs-v1]",
        "--deselect=tests/emulated/models/test_models.py::test_tokens_on_two_devices[gpt_oss]",
        # Two servers, whose engines in turn are judged by the same connector.
        "--deselect=tests/emulated/kv_transfer/test_two_servers.py",
        # Slow, and near to what stays or runs on 0.30.0rc2.
        "--deselect=tests/emulated/benchmarks/test_benchmark_acceptance.py"
        "::test_stock_drafts_wrong_tokens_where_ours_drafts_none",
        "--deselect=tests/emulated/benchmarks/test_benchmark_kv_layout.py::test_vllm_groups_as_it_did",
        f"--deselect={COMPRESSED}::test_few_keys_are_chosen",
        f"--deselect={COMPRESSED}::test_tokens_are_the_references_and_drafts_its_mtp_layers[v1]",
        *(f"--deselect={COMPRESSED}::test_mtp_layer_in_{x}graphs[v1]" for x in ("", "default_")),
        f"--deselect={COMPRESSED}::test_dense_draft",
        "--deselect=tests/emulated/platform/test_metrics.py"
        "::test_without_a_draft_there_are_caches_and_no_proposals",
        "--deselect=tests/emulated/platform/test_explain.py"
        "::test_vllms_own_grouping_is_shown[gpt-oss-20b-eagle3-8x128-25-908]",
        "--deselect=tests/emulated/drafting/test_grammars.py"
        "::test_tokens_are_those_without_a_draft[v1]",
        f"--deselect={ADAPTED}[eagle3-v1-graphs]",
        f"--deselect={ADAPTED}[dflash-v1-graphs]",
        f"--deselect={DRAFT_WINDOWS}::test_proposals_and_acceptance_are_those_of_a_masked_draft"
        "[qwen3_next_mtp-qwen3_next_mtp-mtp-3-None-v1]",
        f"--deselect={DRAFT_WINDOWS}::test_blocks_behind_the_window_are_given_back[False-v1]",
        f"--deselect={PICTURES}::test_a_layer_that_is_given_pictures[v1]",
        # As Qwen2.5-VL, but for models that no other test trains.
        f"--deselect={PICTURES}::test_a_draft_model_where_axes_take_turns",
        f"--deselect={PICTURES}::test_a_head_whose_axes_take_turns",
        # Ray is not installed by set-up.
        "--deselect=tests/emulated/platform/test_several_nodes.py",
        # In chunks the target's keys stay, and the draft's are run by hand.
        f"--deselect={EIGHT_BITS}::test_chunks_of_prompts_and_prefix_hits[draft-v1]",
        # Two engines each, as those of the case that stays.
        f"--deselect={DISAGGREGATED}[eagle3-v1]",
        f"--deselect={DISAGGREGATED}[mtp-v1]",
        # The same of a draft with other states, run on 0.30.0rc2, and fewer ranks than the other.
        f"--deselect={HITS}::test_hits_are_those_without_the_draft[llama_target-lfm2-fields1-v1]",
        f"--deselect={HITS}::test_hits_are_those_without_the_draft"
        "[qwen3_moe-qwen3_next_draft-fields0-v1]",
        f"--deselect={HITS}::test_states_of_the_target_are_hit_and_those_of_the_draft_rebuilt"
        "[qwen3_next-qwen3_next_draft-v1]",
        "--deselect=tests/emulated/platform/test_metrics.py"
        "::test_figures_are_vllms_and_those_of_the_plan[v1-2]",
        f"--deselect={SETTINGS}::test_a_model_accepts_its_own_drafts[gpt_oss]",
        f"--deselect={SETTINGS}::test_a_model_accepts_its_own_drafts[granite4]",
        f"--deselect={SETTINGS}::test_a_model_accepts_its_own_drafts[gemma3]",
        # What fails without it, which a new host may mend.
        "--deselect=tests/emulated/platform/test_graph_memory.py"
        "::test_without_being_measured_they_do_not_fit",
        # Gemma's with vLLM's default settings stay.
        "--deselect=tests/emulated/drafting/test_auxiliary_states.py"
        "::test_states_are_hugging_faces_and_proposals_the_heads[granite4]",
        f"--deselect={SETTINGS}::test_a_model_accepts_its_own_drafts[qwen3_next]",
        f"--deselect={SETTINGS}::test_a_model_accepts_its_own_drafts[lfm2]",
        f"--deselect={SETTINGS}::test_a_recurrent_draft_leaves_the_target_its_prefix_hits[lfm2]",
        # Refused there, which test_kimi_linear.py shows as well.
        f"--deselect={CELL}[kda/dense]",
        # Two servers and their client, whose parts have unit tests.
        "--deselect=tests/emulated/platform/test_bench.py::test_a_pair_with_and_without_its_draft",
        # Weights and caches of 8 bits, but for graphs of both models: static scales are so coarse
        # that rounding decides more tokens than near ties may be, as the processor is.
        f"--deselect={EIGHT_BITS}::test_target_of_8_bits_with_bfloat16_draft[eager-v1]",
        f"--deselect={EIGHT_BITS}::test_bfloat16_target_with_draft_of_8_bits[eager-v1]",
        f"--deselect={EIGHT_BITS}::test_mla_draft_of_quantised_weights",
        f"--deselect={EIGHT_BITS_OF_TARGETS}::test_a_head_on_a_target_of_8_bits[eager-v1]",
        # Plain latents of weights that tell scales of them: with a layer that drafts they stay.
        "--deselect=tests/emulated/drafting/test_eight_bit_latents.py::test_a_dense_draft",
        f"--deselect={EIGHT_BITS}::test_sparse_target_of_8_bits_with_bfloat16_draft",
        # Stale caches in graphs stay.
        "--deselect=tests/emulated/drafting/test_stale_caches.py"
        "::test_the_targets_tokens_stay_and_later_drafts_are_right[eager]",
        # Stock alone, which changes when a host does: run by hand then, but for one eagerly and one
        # in graphs of pieces.
        f"--deselect={EIGHT_BITS}::test_stock_takes_tokens_of_a_verify_step_for_requests",
        f"--deselect={EIGHT_BITS}::test_stock_does_not_start_with_a_quantised_draft",
        *(
            f"--deselect={STOCK}::{test}[{target}]"
            for test, target in (
                ("test_eagerly", "qwen3_moe"),
                ("test_eagerly", "gemma3"),
                ("test_eagerly", "deepseek_v2_target"),
                ("test_eagerly", "qwen3_next"),
                ("test_in_graphs_of_decoding", "llama_target"),
                ("test_in_graphs_of_decoding", "qwen3_moe"),
                ("test_in_graphs_of_decoding", "gemma3"),
                ("test_in_graphs_of_decoding", "deepseek_v2_target"),
                ("test_in_graphs_of_decoding", "qwen3_next"),
            )
        ),
    ),
    # The emulated NPU, models that need more than attention, and drafts. Add a folder when all of
    # it passes there. The tiny models themselves are judged on the default host.
    "0.30": (
        "tests/emulated/device",
        # How the emulated NPU starts a process, and not what vLLM asks of it.
        "--deselect=tests/emulated/device/test_triton.py"
        "::test_vllm_finds_triton_as_the_setting_says_and_kernels_run_either_way",
        "tests/emulated/benchmarks/test_benchmark_kv_layout.py",
        # Kimi delta attention, which 0.23.0 refuses beside drafts.
        f"{CELL}[kda/dense]",
        "tests/emulated/drafting/test_target_keys.py",
        f"{EIGHT_BITS}::test_target_of_8_bits_with_bfloat16_draft[graphs-v2]",
        f"{EIGHT_BITS_OF_TARGETS}::test_a_head_on_a_target_of_8_bits[graphs-v2]",
        # Targets that see pictures. A layer that is given them takes minutes, and is run by hand.
        f"{PICTURES}::test_a_head_with_axes[v2]",
        "tests/emulated/layout/test_block_zeroer.py",
        "tests/emulated/layout/test_bookkeeping.py",
        # Plans from numbers, from built models and of engines: experts, states, indexers, heads.
        f"{PLANNED}[gdn, gdn]",
        f"{PLANNED}[eagle3]",
        "tests/emulated/layout/test_planner.py"
        "::test_weights_and_ranks_that_are_not_there_are_built",
        "tests/emulated/layout/test_planner.py"
        "::test_rotary_tables_larger_than_the_device_are_built",
        "tests/emulated/layout/test_layout_engines.py"
        "::test_the_drafts_cache_may_have_a_dtype_of_its_own",
        "tests/emulated/layout/test_layout_groups.py",
        f"{PLANNED}[mla, windows, v2]",
        "tests/emulated/layout/test_planned_runner.py",
        "tests/emulated/layout/test_requests_at_once.py",
        "tests/emulated/models/test_adapted_backends.py",
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
        f"{RANKS}::test_ranks_are_idle_in_turn[gpt_oss-gpt_oss_draft-draft_model-2-v2]",
        f"{RANKS}::test_ranks_are_idle_in_turn_in_graphs[gpt_oss-gpt_oss_draft-draft_model-2-v2]",
        "tests/emulated/runner_v2/test_ranks.py::test_two_ranks_of_tensor_parallelism[graphs]",
        # Over pipeline stages, from graphs; on model runner V2 also heads without embeddings.
        f"{BEHIND_STAGES}[draft_model-FULL_DECODE_ONLY]",
        f"{STAGES}::test_a_draft_has_all_its_layers_however_the_targets_are_shared_out",
        "tests/emulated/runner_v2/test_loading.py",
        f"{V2_STAGES}::test_tokens_proposals_and_acceptance_are_the_references"
        "[draft_model-FULL_DECODE_ONLY]",
        f"{V2_STAGES}::test_tokens_proposals_and_acceptance_are_the_references[embeddings-None]",
        f"{V2_STAGES}::test_heads_on_hidden_states_of_layers_of_both_stages[dflash-FULL_DECODE_ONLY]",
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
        "tests/emulated/platform/test_early_check.py",
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
        # vllm-ascend would skip a batch near the longest context.
        "tests/emulated/drafting/test_drafting_blocks.py"
        "::test_one_group_chunks_prefix_hits_and_the_maximum_length",
        f"{GROUPS}::test_preemption_with_asynchronous_scheduling",
        f"{GROUPS}::test_aborted_requests_leave_the_others_as_they_were",
        "tests/emulated/drafting/test_drafting_sampling.py",
        "tests/emulated/drafting/test_proposers.py",
        # What of the process is the target's, and what the draft's.
        "tests/emulated/drafting/test_draft_isolation.py",
        # What the host reads, by count, and how metadata is shared.
        f"{COST}::test_a_replayed_proposal_is_four_launches_beside_its_graph",
        f"{COST}::test_the_host_reads_nothing_where_operators_take_lengths_as_tensors"
        "[flash_attention_3]",
        "tests/emulated/drafting/test_draft_metadata.py",
        "tests/emulated/drafting/test_target_pass.py",
        "tests/emulated/graphs/test_draft_launches.py",
        "tests/emulated/graphs/test_task_updates.py",
    ),
}
"""Host -> its tests on the emulated NPU."""
