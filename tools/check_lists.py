# SPDX-License-Identifier: Apache-2.0
"""Which tests `make test` runs on each host."""

from __future__ import annotations

import check_list_0_30
from tested_files import (
    ADAPTED,
    ALL_DEFAULTS,
    BEHIND_STAGES,
    CELL,
    COMPRESSED,
    DISAGGREGATED,
    DRAFT_WINDOWS,
    EIGHT_BITS,
    EIGHT_BITS_OF_TARGETS,
    GIVING_UP,
    HITS,
    INSIDE,
    KEPT_GRAPHS,
    MAMBA,
    PAIRS,
    PICTURES,
    PREDICTED,
    RANKS,
    REFERENCE,
    REPLICATED_BY_HAND,
    SETTINGS,
    SHARED_TOKENS,
    SHARES_BY_HAND,
    STAGES,
    STATES_IN_STAGES,
    STATES_OF_STAGES,
    STOCK,
    TRACED,
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
        # On 0.23.0 they reached nobody before it was mended, by chance.
        f"--deselect={RANKS}::test_rows_of_no_request_reach_nobody",
        # In graphs, as another draft with experts and one without; eagerly, the split head stays.
        f"--deselect={RANKS}::test_ranks_are_idle_in_turn_in_graphs"
        "[deepseek_v3_mtp-deepseek_v3_mtp-mtp-1-v1]",
        f"--deselect={RANKS}::test_ranks_are_idle_in_turn_in_graphs"
        "[gpt_oss-gpt_oss_dflash-dflash-2-v1]",
        f"--deselect={RANKS}::test_ranks_are_idle_in_turn[",
        f"--deselect={RANKS}::test_experts_spread_over_the_ranks",
        # Two engine cores and four workers: more than a minute.
        f"--deselect={RANKS}::test_ranks_of_two_stages_are_idle_in_turn",
        # Experts with states, which draft eagerly beside graphs of the target.
        f"--deselect={RANKS}::test_experts_with_states_run_eagerly_beside_graphs",
        # Heads of MLA and dense ones, and a dense draft for an MLA target, stay.
        *(f"--deselect={one}" for one in (*SHARES_BY_HAND, *REPLICATED_BY_HAND)),
        # One device, and several with an MLA target, stay.
        f"--deselect={PAIRS}::test_dense_target_with_dense_draft_on_another_backend[tp2]",
        f"--deselect={PAIRS}::test_a_model_drafting_for_itself_is_always_accepted[tp2]",
        # Over pipeline stages: four of them stay, and one of graphs runs on 0.30.0rc2.
        f"--deselect={BEHIND_STAGES}[draft_model",
        f"--deselect={BEHIND_STAGES}[mtp-None",
        f"--deselect={BEHIND_STAGES}[eagle-FULL_DECODE_ONLY",
        # Recurrent states in stages: these run on 0.30.0rc2.
        f"--deselect={STATES_IN_STAGES}::test_preempted_requests_begin_again",
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
        # Run by hand: what its engines take has not been measured on an idle machine.
        "--deselect=tests/emulated/drafting/test_random_pairs.py",
        # Model runner V2 of 0.30.0rc2 loses such matrices; this one keeps them.
        "--deselect=tests/emulated/drafting/test_own_output_matrix.py",
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
        # A rank that fails in the target's pass: one that fails in the draft's stays.
        "--deselect=tests/emulated/platform/test_failed_ranks.py"
        "::test_each_request_is_answered_or_fails_at_once[target-v1]",
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
        # Weights and caches of 8 bits, but for graphs of both models: static scales are so coarse
        # that rounding decides more tokens than near ties may be, as the processor is.
        f"--deselect={EIGHT_BITS}::test_target_of_8_bits_with_bfloat16_draft[eager-v1]",
        f"--deselect={EIGHT_BITS}::test_bfloat16_target_with_draft_of_8_bits[eager-v1]",
        f"--deselect={EIGHT_BITS_OF_TARGETS}::test_a_head_on_a_target_of_8_bits[eager-v1]",
        # Plain latents of weights that tell scales of them: with a layer that drafts they stay.
        "--deselect=tests/emulated/drafting/test_eight_bit_latents.py::test_a_dense_draft",
        f"--deselect={EIGHT_BITS}::test_sparse_target_of_8_bits_with_bfloat16_draft",
        # Traced: a draft model on two ranks that share experts stays, and draft models and heads of
        # other tests. Stages, and a head on two ranks, are traced on 0.30.0rc2.
        f"--deselect={TRACED}::test_on_one_device",
        f"--deselect={TRACED}::test_on_two_ranks[eagle3-v1]",
        f"--deselect={TRACED}::test_on_two_ranks[draft_model-v1]",
        f"--deselect={TRACED}::test_on_two_ranks[experts-v1]",
        f"--deselect={TRACED}::test_over_two_stages",
        # All defaults at once: a layer of MLA that drafts stays. 0.30.0rc2 runs windows.
        f"--deselect={ALL_DEFAULTS}[windows]",
        # Tokens that ranks share out: what is wrong without us stays.
        f"--deselect={SHARED_TOKENS}::test_eagerly[eagle3]",
        # Two engines each: that heads are told apart stays.
        f"--deselect={KEPT_GRAPHS}::test_a_second_start_drafts_as_the_first",
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
    "0.30": check_list_0_30.EMULATED,
}
"""Host -> its tests on the emulated NPU."""
