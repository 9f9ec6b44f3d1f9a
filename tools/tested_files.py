# SPDX-License-Identifier: Apache-2.0
"""Files and tests that lists of checks name more than once."""

from __future__ import annotations

DRAFT_WINDOWS = "tests/emulated/drafting/test_draft_windows.py"
GROUPS = "tests/emulated/drafting/test_drafting_groups.py"
GRAPHS = "tests/emulated/graphs/test_draft_graphs.py"
KEPT_GRAPHS = "tests/emulated/graphs/test_kept_graphs.py"
TRACED = "tests/emulated/graphs/test_traced_drafts.py"
ALL_DEFAULTS = "tests/emulated/graphs/test_all_defaults.py::test_tokens_and_drafts"
SHARED_TOKENS = "tests/emulated/drafting/test_shared_tokens.py"
COST = "tests/emulated/drafting/test_drafting_cost.py"
RANKS = "tests/emulated/drafting/test_drafting_data_parallel.py"
SHARES = "tests/emulated/drafting/test_drafting_shares.py"
SHARES_BY_HAND = tuple(
    f"{SHARES}::test_{name}"
    for name in (
        "a_dense_model_drafting_for_itself_is_always_accepted[1]",
        "a_draft_model_for_mla_in_graphs",
        "four_ranks_of_which_two_or_all_share_keys",
        "four_ranks_of_which_two_share_keys_of_a_dense_model",
        "tokens_drafted_in_parallel[llama_one_key_head-llama_one_key_head]",
        "tokens_drafted_in_parallel[deepseek_v2_target-deepseek_v2_draft]",
        "asynchronous_scheduling",
        "a_draft_that_is_given_up",
        "stock_cannot_go_on_from_a_prompt_with_an_mla_head",
        "stock_counts_rejected_tokens_with_an_mla_head",
        "stock_cannot_draft_with_a_dense_model",
    )
)
"""Under context parallelism; on two ranks each."""
REPLICATED = "tests/emulated/drafting/test_replicated_drafts.py"
REPLICATED_BY_HAND = tuple(
    f"{REPLICATED}::test_{name}"
    for name in (
        "windows_beside_a_dense_target_by_stretches_of_a_block_and_preempted",
        "tokens_that_see_those_behind_them[dflash-eager]",
    )
)
PAIRS = "tests/emulated/drafting/test_pairs.py"
REFERENCE = (
    "tests/emulated/drafting/test_drafting_reference.py"
    "::test_proposals_and_acceptance_are_the_references"
)
PLANNER = "tests/emulated/layout/test_planner.py"
PLANNED = f"{PLANNER}::test_what_is_explained_is_what_an_engine_allocates"
PREDICTED = f"{PLANNER}::test_a_predictor_of_numbers_alone_is_what_vllm_builds"
INSIDE = f"{PLANNER}::test_a_language_model_inside_is_planned_as_vllm_builds_it"
SEAT = "tests/emulated/platform/test_seat.py"
COMPRESSED = "tests/emulated/models/test_deepseek_v4.py"
V2 = "tests/emulated/runner_v2/test_drafts.py"
V2_GRAPHS = "tests/emulated/runner_v2/test_graphs.py"
V2_SHARES = "tests/emulated/runner_v2/test_shares.py"
V2_STOCK_GRAPHS = "tests/emulated/runner_v2/test_stock_graphs.py"
V2_SAMPLING = "tests/emulated/runner_v2/test_sampling.py"
V2_STAGES = "tests/emulated/runner_v2/test_stages.py"
V2_STATES = "tests/emulated/runner_v2/test_states_in_stages.py"
STATES_IN_STAGES = "tests/emulated/recurrent/test_states_in_stages.py"
AT_RANDOM = f"{V2_SAMPLING}::test_a_model_that_drafts_for_itself_at_random_is_always_right"
LOADS = "tests/emulated/runner_v2/test_following_loads.py"
REQUESTS = "tests/emulated/drafting/test_drafting_requests.py"
HITS = "tests/emulated/recurrent/test_hits_of_recurrent_drafts.py"
ISOLATION = "tests/emulated/drafting/test_draft_isolation.py"
STATED = (
    "tests/emulated/recurrent/test_recurrent_drafts.py::test_targets_without_states_and_with_others"
)
WINDOWS = "tests/emulated/recurrent/test_convolutions_with_triton.py"
MAMBA = "tests/emulated/recurrent/test_mamba_models.py"
STATES = "tests/emulated/recurrent/test_gated_delta_nets.py"
STOCK = "tests/emulated/models/test_stock.py"
SETTINGS = "tests/emulated/platform/test_default_settings.py"
PICTURES = "tests/emulated/drafting/test_pictures.py"
EIGHT_BITS = "tests/emulated/drafting/test_eight_bits.py"
EIGHT_BITS_OF_TARGETS = "tests/emulated/drafting/test_eight_bits_of_targets.py"
ADAPTED = "tests/emulated/drafting/test_adapters_beside_heads.py::test_tokens_and_drafts"
CELL = "tests/emulated/benchmarks/test_matrix.py::test_a_cell_ends_as_published"
CELL_WITH_HITS = (
    "tests/emulated/benchmarks/test_matrix.py::test_a_cell_with_prefix_hits_ends_as_published"
)
GIVING_UP = "tests/emulated/drafting/test_giving_up.py"
STAGES = "tests/emulated/drafting/test_pipeline.py"
BEHIND_STAGES = f"{STAGES}::test_tokens_proposals_and_acceptance_are_the_references"
STATES_OF_STAGES = f"{STAGES}::test_heads_on_hidden_states_of_layers_of_both_stages"
HIDDEN_STATES = (
    "tests/emulated/kv_transfer/test_hidden_states.py::test_states_of_a_target_in_several_groups"
)
DECODED_LATENTS = (
    "tests/emulated/kv_transfer/test_decoded_latents.py::test_drafts_of_a_node_that_decodes"
)
DISAGGREGATED = (
    "tests/emulated/kv_transfer/test_disaggregated.py"
    "::test_what_another_engine_read_is_decoded_and_drafted_behind"
)
