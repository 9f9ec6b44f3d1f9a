# SPDX-License-Identifier: Apache-2.0
"""Records of the methods of vllm-ascend's model runner that ``runner.py`` replaces on all hosts."""

from __future__ import annotations

from mkv_ascend.adapters.patching import record

TARGET_METADATA = record(
    name="the target's pass without the draft",
    target="vllm_ascend.worker.model_runner_v1:NPUModelRunner._build_attention_metadata",
    reads=("vllm_ascend.worker.model_runner_v1:NPUModelRunner._pad_query_start_loc_for_fia",),
    writes=("attn_state", "attn_groups", "kv_cache_config", "block_table"),
    why="Metadata is built for the draft's layers too, which nobody reads in the target's pass, "
    "and for each KV group anew where groups differ by nothing but their block table. And "
    "before capture vllm-ascend runs dummy verify steps in the state of a decode, except "
    "for mtp: layers with sinks then count one query per request and refuse the rest; real "
    "verify steps are in the state of a chunk. And tokens that 0.30.0rc2 adds, so that ranks which "
    "share tokens out have as many each, belong to no request, nor do those that fill a step up to "
    "the size of its pieces of graphs: memory that attention writes nothing to reaches tokens of "
    "requests through experts of other ranks. In prompts without hits it attends to the step's "
    "keys, of which layers that read another layer's cache (Gemma 3n, Gemma 4) have none.",
    until="vllm-ascend leaves the draft's groups out, builds once per distinct need, "
    "_dummy_run takes the state of a verify step, enable_sp() knows the runner's configuration, "
    "rows of no request reach nobody, and layers without keys read the cache in any step",
    test=(
        "tests/emulated/models/test_shared_caches.py",
        "tests/emulated/drafting/test_drafting_cost.py"
        "::test_the_targets_pass_costs_what_it_costs_without_a_draft",
        "tests/emulated/drafting/test_shared_tokens.py",
        "tests/emulated/graphs/test_traced_drafts.py",
    ),
)

PLANNED_CACHES = record(
    name="caches from a plan",
    target=(
        "vllm_ascend.worker.model_runner_v1:NPUModelRunner.get_kv_cache_spec",
        "vllm_ascend.worker.model_runner_v1:NPUModelRunner._allocate_kv_cache_tensors",
        "vllm_ascend.worker.model_runner_v1:NPUModelRunner._reshape_kv_cache_tensors",
        "vllm_ascend.worker.model_runner_v1:NPUModelRunner.initialize_kv_cache_tensors",
        "vllm_ascend.worker.model_runner_v1:NPUModelRunner._init_kv_zero_meta",
        "vllm_ascend.worker.model_runner_v1:NPUModelRunner._update_states",
        "vllm.v1.worker.gpu_model_runner:GPUModelRunner."
        "maybe_add_kv_sharing_layers_to_kv_cache_groups",
    ),
    reads=("vllm_ascend.worker.model_runner_v1:NPUModelRunner.initialize_kv_cache",),
    writes=("hybrid_with_attn_and_mamba", "kv_cache", "_kv_block_zeroer"),
    why="vllm-ascend 0.23.0 has tensors of one size for a KV group, where a draft's layers with "
    "other pages find no place. 0.30.0rc2 has a buffer for each layer, where groups that take "
    "turns in a block share no bytes. Ours come from the plan, in their final shapes. Facts "
    "of layers that planning needs are tied to their specs. Its groups of unlike pages have specs "
    "by layer, and lack those of layers that join to share a cache. Beside DeepSeek-V4 the caches "
    "of all layers are bound in a list, as its own take them: a draft's find no keys in it. "
    "And rejected rows of a proposal's first pass are keys that were never written. In a block "
    "that held states in float32 they read as NaN, and the draft's tokens are wrong; vllm-ascend "
    "zeroes new blocks of layers of two tensors with pages of one size, for eagle3 alone. Where "
    "groups share pages, an id that is to be copied is a block of one group.",
    until="vllm-ascend allocates each layer's cache from its own spec and binds it as the layer "
    "takes it, groups share bytes, new blocks are zeroed by their bytes for all methods, and vLLM "
    "adds the specs of layers that share",
    test=(
        "tests/emulated/layout/test_planned_runner.py",
        "tests/emulated/layout/test_requests_at_once.py"
        "::test_specs_that_vllm_ascend_arranges_get_no_facts",
        "tests/emulated/models/test_shared_caches.py"
        "::test_a_layer_that_shares_joins_a_group_of_unlike_pages",
        "tests/emulated/models/test_deepseek_v4.py::test_dense_draft",
        "tests/emulated/layout/test_block_zeroer.py",
        "tests/emulated/layout/test_shared_pages.py"
        "::test_requests_go_on_from_the_middle_of_a_block",
    ),
)
